"""After a rank has died:

what is missing of the profile. The dead say nothing, so whoever has started them does.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic
from vtool.profiling.profiler import FOLDER
from vtool.profiling.tools import ENDINGS


def unwritten(
    run: Run, world: int, metrics: Path, ended: Mapping[int, str]
) -> Iterator[Diagnostic]:
    """The files that ranks have not left, of a run that ended because a rank did, inside the
    interval or after it.

    Args:
        metrics: the run's metrics.jsonl, which says how far it has come.
        ended: how ranks ended for which the others were stopped.
    """
    given = run.profiler
    first, last = given.profile_interval
    done = _last_step(metrics)
    if given.tool == "none" or done + 1 < first:
        return
    folder = run.folder / FOLDER
    for rank in given.ranks if given.ranks is not None else range(world):
        missing = [
            ending
            for ending in ENDINGS[given.tool]
            if not list(folder.glob(f"rank-{rank}-steps-{first}-*.{ending}"))
        ]
        if missing:
            names = ", ".join(f"rank-{rank}-steps-{first}-{last}.{ending}" for ending in missing)
            how = (
                f"ended with {ended[rank]}"
                if rank in ended
                else "was stopped for another one before they were written"
            )
            message = (
                f"{folder}: there is no {names}: rank {rank} {how}, when {done} steps of the run"
                " were done"
            )
            help = (
                "the same command goes on from the last checkpoint; where that is before the"
                " interval, the steps are recorded again"
            )
            yield Diagnostic("profile-missing", message, help, "profiler.tool")


def _last_step(metrics: Path) -> int:
    """The last step that has a line, 0 where there is none;

    a line that is cut off counts as none.
    """
    steps = [0]
    try:
        for line in metrics.read_text(errors="replace").splitlines():
            found = json.loads(line) if line.endswith("}") else {}
            steps.append(int(found["step"]) if "loss" in found else 0)
    except (OSError, ValueError, KeyError):
        pass
    return max(steps)
