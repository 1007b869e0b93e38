"""The user's own class of a run: one file on all ranks, unchanged since the run began."""

import json

from vtool.config.schema import Run
from vtool.contents import read_small_json
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.families.modeling_file import SETTING
from vtool.models.model_class import describe_modeling
from vtool.training.agreement import name_ranks
from vtool.training.own_folder import write_atomically
from vtool.training.run_folder import RunFolder, reading
from vtool.training.start import Start


def keep_class(run: Run, folder: RunFolder, start: Start, ranks: Ranks) -> None:
    """Record the class's file, and check it on every rank and against the checkpoint's run.

    Raises:
        Findings: `ranks-differ`, `modeling-changed`, `run-folder-unwritable`; on every rank.
    """
    if run.model.modeling is None:
        return
    record = describe_modeling(run.model.modeling)
    digests = ranks.all_gather_objects(record["sha256"])
    if others := [rank for rank, digest in enumerate(digests) if digest != digests[0]]:
        message = f"{name_ranks(others)}: {record['file']} is not the file that rank 0 has"
        raise SharedFindings(
            Diagnostic("ranks-differ", message, "copy rank 0's file to the other machines", SETTING)
        )
    ranks.on_rank_zero(lambda: _keep(record, folder, start))


def _keep(record: dict[str, str], folder: RunFolder, start: Start) -> None:
    if start.origin is not None:
        with reading(start.origin.modeling):
            before = read_small_json(start.origin.modeling)["sha256"]
        if before != record["sha256"]:
            message = f"{record['file']} is not what it was when {start.origin.path} began"
            raise Findings(Diagnostic("modeling-changed", message, parameter=SETTING))
    with folder.writing():
        write_atomically(folder.modeling, json.dumps(record, indent=1) + "\n")
