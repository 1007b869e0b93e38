"""Report what a profile lacks after a rank has died, from the process that started the ranks."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from vtool.config.schema import Run
from vtool.contents import small_file
from vtool.diagnostics import Diagnostic
from vtool.profiling.profiler import PROFILE_FOLDER
from vtool.profiling.tools import ENDINGS


def incomplete_profiles(
    run: Run, world: int, metrics: Path, ended: Mapping[int, str]
) -> Iterator[Diagnostic]:
    """Yield a finding for each rank whose profile is incomplete after a rank's death ended the run.

    Args:
        metrics: the run's metrics.jsonl, which says how many steps are done.
        ended: how ranks ended, by rank; the other ranks were stopped because of them.
    """
    settings = run.profiler
    first, last = settings.profile_interval
    done = _last_step(metrics)
    if settings.tool == "none" or done + 1 < first:
        return
    folder = run.folder / PROFILE_FOLDER
    for rank in settings.ranks if settings.ranks is not None else range(world):
        missing = [
            ending
            for ending in ENDINGS[settings.tool]
            if not list(folder.glob(f"rank-{rank}-steps-{first}-*.{ending}"))
        ]
        if missing:
            names = ", ".join(f"rank-{rank}-steps-{first}-{last}.{ending}" for ending in missing)
            how = (
                f"ended with {ended[rank]}"
                if rank in ended
                else "was stopped for another one before they were written"
            )
            yield Diagnostic(
                "profile-missing",
                (
                    f"{folder}: there is no {names}: rank {rank} {how}, when {done} steps of the"
                    " run were done"
                ),
                (
                    "the same command resumes from the last checkpoint; where that is before the"
                    " interval, the steps are recorded again"
                ),
                "profiler.tool",
            )


def _last_step(metrics: Path) -> int:
    """Return the last step that has a whole line in metrics.jsonl, or 0."""
    steps = [0]
    try:
        for line in small_file(metrics).decode(errors="replace").splitlines():
            found = json.loads(line) if line.endswith("}") else {}
            steps.append(int(found["step"]) if "loss" in found else 0)
    except (OSError, ValueError, KeyError):
        pass
    return max(steps)
