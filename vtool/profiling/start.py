"""Before the first step:

what the settings alone could not tell of a profile, so that none is promised that cannot be made.
"""

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


def problems(
    given: Profiler, ranks: Ranks, total: int, environment: Mapping[str, str] = os.environ
) -> Iterator[Diagnostic]:
    """What stands against the profile of a run on this rank. `total`: the run's steps."""
    yield from past_the_end(given, total)
    yield from outside_the_world(given, ranks.world)
    yield from wrong_device(given, ranks.device.type)
    if given.tool == "nsys" and not any(environment.get(name) for name in NSYS):
        message = (
            "profiler.tool is nsys, but this process does not run under nsys, so that nothing would"
            " be recorded"
        )
        help = (
            "nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop vtool train"
            " sft …"
        )
        yield Diagnostic("profiler-device", message, help, "profiler.tool")
    if given.tool == "npu" and (visible := environment.get("ASCEND_RT_VISIBLE_DEVICES")):
        message = (
            f"ASCEND_RT_VISIBLE_DEVICES is {visible}: CANN 8.3 and later do not profile together"
            " with it"
        )
        yield Diagnostic(
            "profiler-device",
            message,
            "leave it out where CANN is 8.3 or later",
            "profiler.tool",
            severity="warning",
        )


def unwritable(folder: Path) -> Iterator[Diagnostic]:
    """Why nothing could be written to the folder of profiles. It is made where it is not there."""
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


def behind(given: Profiler, step: int) -> Diagnostic:
    """The interval of a run that goes on after `step`, past its beginning."""
    first, last = given.profile_interval
    message = f"profiler.profile_interval is {[first, last]}, and the run goes on after step {step}"
    length = last - first
    begin = step + 1 + (given.warmup if given.tool in ("torch", "npu") else 0)
    help = f"{INTERVAL}=[{begin},{begin + length}], or profiler=none"
    return Diagnostic("profile-behind", message, help, INTERVAL)


def recorded_before(folder: Path, rank: int, first: int) -> list[int]:
    """The last step of each profile of this rank that begins with step `first`."""
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
