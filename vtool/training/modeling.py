"""The user's own class of a run:

the same file on every rank, and the same as when the run began.
"""

import json

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.families.modeling_file import SETTING
from vtool.models.modeling import described
from vtool.training.run_folder import RunFolder, write_atomically
from vtool.training.start import Start


def keep_class(run: Run, folder: RunFolder, start: Start, ranks: Ranks) -> None:
    """Write down where the class is from, and hold the file against that of the checkpoint that the
    run goes on from. Every rank does so.

    Raises:
        Findings: `ranks-differ`, `modeling-changed`, `run-folder-unwritable`; on every rank.
    """
    if run.model.modeling is None:
        return
    mine = described(run.model.modeling)
    everyone = ranks.all_gather_objects(mine["sha256"])
    if others := [str(rank) for rank, digest in enumerate(everyone) if digest != everyone[0]]:
        message = (
            f"rank{'s' * (len(others) > 1)} {', '.join(others)}: {mine['file']} is not the file"
            " that rank 0 has"
        )
        raise SharedFindings(
            Diagnostic("ranks-differ", message, "copy rank 0's file to the other machines", SETTING)
        )
    ranks.on_rank_zero(lambda: _keep(mine, folder, start))


def _keep(mine: dict[str, str], folder: RunFolder, start: Start) -> None:
    if start.began is not None:
        try:
            before = json.loads(start.began.modeling.read_text())["sha256"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{start.began.modeling} cannot be read: {error}"
            raise Findings(
                Diagnostic("not-a-run", message, parameter="run.dir"), fatal=True
            ) from error
        if before != mine["sha256"]:
            message = f"{mine['file']} is not what it was when {start.began.path} began"
            raise Findings(Diagnostic("modeling-changed", message, parameter=SETTING))
    with folder.writing():
        write_atomically(folder.modeling, json.dumps(mine, indent=1) + "\n")
