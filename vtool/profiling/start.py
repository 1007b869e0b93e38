"""The checks before step 1 of a profile: what the settings alone cannot show."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from vtool.config.rules.profiler import INTERVAL, outside_the_world, past_the_end, wrong_device
from vtool.config.schema.profiler import Profiler
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import Ranks

# What nsys sets in the processes that it watches: its session since 2023, the library that it
# injects before that.
NSYS = ("NSYS_PROFILING_SESSION_ID", "QUADD_INJECTION_PROXY", "CUDA_INJECTION64_PATH")


def profile_problems(
    settings: Profiler, ranks: Ranks, total: int, environment: Mapping[str, str] = os.environ
) -> Iterator[Diagnostic]:
    """Yield the problems of a profile of a run of `total` steps, on this rank."""
    yield from past_the_end(settings, total)
    yield from outside_the_world(settings, ranks.world)
    yield from wrong_device(settings, ranks.device.type)
    if settings.tool == "nsys" and not any(environment.get(name) for name in NSYS):
        yield Diagnostic(
            "profiler-device",
            (
                "profiler.tool is nsys, but this process does not run under nsys, so that nothing"
                " would be recorded"
            ),
            (
                "nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop vtool train"
                " sft …"
            ),
            "profiler.tool",
        )
    if settings.tool == "npu" and (visible := environment.get("ASCEND_RT_VISIBLE_DEVICES")):
        yield Diagnostic(
            "profiler-device",
            (
                f"ASCEND_RT_VISIBLE_DEVICES is {visible}: CANN 8.3 and later do not profile"
                " together with it"
            ),
            "leave it out where CANN is 8.3 or later",
            "profiler.tool",
            severity="warning",
        )


def unwritable(folder: Path) -> Iterator[Diagnostic]:
    """Yield a finding where the folder of profiles, which is made here, cannot be written to."""
    probe = folder / f".writing-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("x")
        probe.unlink()
    except OSError as error:
        yield Diagnostic(
            "run-folder-unwritable",
            f"{folder}: {error.strerror}, and profiler.tool is set",
            parameter="run.dir",
        )


def interval_behind(settings: Profiler, step: int) -> Diagnostic:
    """Return the finding for an interval that begins before the step that a run resumes after."""
    first, last = settings.profile_interval
    message = f"profiler.profile_interval is {[first, last]}, and the run resumes after step {step}"
    length = last - first
    begin = step + 1 + (settings.warmup if settings.tool in ("torch", "npu") else 0)
    return Diagnostic(
        "profile-behind",
        message,
        f"{INTERVAL}=[{begin},{begin + length}], or profiler=none",
        INTERVAL,
    )


def recorded_before(folder: Path, rank: int, first: int) -> list[int]:
    """Return the last step of each profile of this rank that begins with step `first`."""
    names = (
        [path.name for path in folder.glob(f"rank-{rank}-steps-{first}-*")]
        if folder.is_dir()
        else []
    )
    return sorted(
        {
            int(found[1])
            for name in names
            if (found := re.match(rf"rank-{rank}-steps-{first}-(\d+)\.", name))
        }
    )
