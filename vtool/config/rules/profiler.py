"""Rules about `profiler`: settings that would record nothing, or that nobody reads.

What needs the device, the number of ranks, or the step that a run goes on from is asked again where
these are known (`vtool.profiling.start`), of the same functions.
"""

from collections.abc import Iterator

from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.config.schema.profiler import OFF, Profiler
from vtool.diagnostics import Diagnostic, Origin

INTERVAL = "profiler.profile_interval"
DEVICES = {"torch": ("cpu", "cuda"), "npu": ("npu",), "nsys": ("cuda",), "memory": ("cuda",)}
"""The kinds of device that a tool records."""


def _near(origins: Origins | None, name: str) -> Origin | None:
    return origins.near(name) if origins else None


def nothing_profiled(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """A tool has an interval, an interval a tool, and somebody records."""
    given = run.profiler
    if given.tool == "none" and given.profile_interval != OFF:
        message = (
            f"profiler.profile_interval is {list(given.profile_interval)}, but profiler.tool is"
            " none"
        )
        yield Diagnostic(
            "nothing-profiled",
            message,
            "choose a tool: profiler.tool=torch",
            INTERVAL,
            origins.near(INTERVAL),
        )
    if given.tool != "none" and given.profile_interval == OFF:
        message = (
            f"profiler.tool is {given.tool}, but profiler.profile_interval is [-1, -1], which"
            " records nothing"
        )
        yield Diagnostic(
            "nothing-profiled",
            message,
            f"name the steps: {INTERVAL}=[5,7]",
            INTERVAL,
            origins.near("profiler.tool"),
        )
    if given.ranks == ():
        message = "profiler.ranks is [], so that nobody records"
        yield Diagnostic(
            "nothing-profiled",
            message,
            "leave it out for all ranks",
            "profiler.ranks",
            origins.near("profiler.ranks"),
        )


def interval(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """The interval lies within the run, its warm-up too.

    A run of epochs has a number of steps that only the rows tell.
    """
    if run.profiler.profile_interval == OFF:
        return
    first, last = run.profiler.profile_interval
    message = help = None
    if first < 1:
        message = "begins before step 1" + (
            ", and -1 is off only as [-1, -1]" if first == -1 else "; steps are counted from 1"
        )
        help = (
            f"{INTERVAL}=[{max(1, 1 + run.profiler.warmup)},{max(last, 1 + run.profiler.warmup)}]"
        )
    elif last < first:
        message, help = (
            f"ends at {last}, before it begins",
            (f"{INTERVAL}=[{last},{first}]" if last > 0 else f"{INTERVAL}=[{first},{first}]"),
        )
    elif run.profiler.starts < 1:
        message = (
            f"begins at {first}, and {run.profiler.warmup} steps of warm-up do not fit before it"
        )
        help = (
            f"profiler.warmup={first - 1}, or let the interval begin at {1 + run.profiler.warmup}"
        )
    if message:
        message = f"profiler.profile_interval is {[first, last]}: it {message}"
        yield Diagnostic(
            "profile-interval",
            message,
            help,
            INTERVAL,
            origins.near(INTERVAL),
            seen=str([first, last]),
        )
    elif run.train.steps is not None:
        yield from past_the_end(run.profiler, run.train.steps, origins)


def past_the_end(
    given: Profiler, steps: int, origins: Origins | None = None
) -> Iterator[Diagnostic]:
    """The last recorded step is one that the run has."""
    first, last = given.profile_interval
    if last > steps:
        message = (
            f"profiler.profile_interval is {[first, last]}, and the run ends after step {steps}"
        )
        help = (
            f"{INTERVAL}=[{first},{steps}]"
            if first <= steps
            else "choose steps that the run has, or raise train.steps"
        )
        yield Diagnostic(
            "profile-interval",
            message,
            help,
            INTERVAL,
            _near(origins, INTERVAL),
            f"at most {steps}",
            str(last),
        )


def ranks(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Each rank is there, once."""
    given = run.profiler.ranks or ()
    if len(set(given)) < len(given):
        once = ",".join(map(str, sorted(set(given))))
        message = f"profiler.ranks is {list(given)}: a rank is named twice"
        yield Diagnostic(
            "profiler-ranks",
            message,
            f"profiler.ranks=[{once}]",
            "profiler.ranks",
            origins.near("profiler.ranks"),
        )
    if run.launch.nproc is not None:
        yield from outside_the_world(run.profiler, run.launch.nproc, origins)


def outside_the_world(
    given: Profiler, world: int, origins: Origins | None = None
) -> Iterator[Diagnostic]:
    """No rank is named that the run does not have."""
    outside = [rank for rank in given.ranks or () if rank >= world]
    if outside:
        message = (
            f"profiler.ranks names {', '.join(map(str, outside))}, and the run has {world}"
            f" rank{'s' * (world > 1)}, from 0"
        )
        origin = _near(origins, "profiler.ranks")
        yield Diagnostic(
            "profiler-ranks",
            message,
            "leave it out for all ranks",
            "profiler.ranks",
            origin,
            f"below {world}",
            str(outside),
        )


def device(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """The tool records this kind of device. That of `auto` is asked for when it has been chosen."""
    if run.device.kind != "auto":
        yield from wrong_device(run.profiler, run.device.kind, origins)


def wrong_device(
    given: Profiler, kind: str, origins: Origins | None = None
) -> Iterator[Diagnostic]:
    """Why a tool would record nothing of this kind of device."""
    if given.tool == "none" or kind in DEVICES[given.tool]:
        return
    fits = next((tool for tool, kinds in DEVICES.items() if kind in kinds), "none")
    message = (
        f"profiler.tool is {given.tool}, which records {' and '.join(DEVICES[given.tool])}, and the"
        f" run is on {kind}"
    )
    origin = _near(origins, "profiler.tool")
    yield Diagnostic(
        "profiler-device",
        message,
        f"profiler.tool={fits}",
        "profiler.tool",
        origin,
        fits,
        given.tool,
    )


def npu_levels(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Counters of AI cores come with level1 and level2;

    torch_npu would drop them with a line in a log.
    """
    npu = run.profiler.npu
    if npu.aic_metrics is not None and npu.level not in ("level1", "level2"):
        message = (
            f"profiler.npu.aic_metrics is {npu.aic_metrics}, which takes level1 or level2, and"
            f" profiler.npu.level is {npu.level}"
        )
        name = "profiler.npu.aic_metrics"
        yield Diagnostic(
            "npu-profiler-level",
            message,
            "profiler.npu.level=level1",
            name,
            origins.near(name),
            "level1 or level2",
            npu.level,
        )


def unread(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Settings of another tool than the one that is used.

    Only what somebody has written is noted, never a default.
    """
    readers = {"warmup": ("torch", "npu"), "max_trace_mb": ("torch",)}
    readers |= {
        f"record.{name}": ("torch", "npu") for name in ("shapes", "stacks", "flops", "memory")
    }
    readers |= {
        f"npu.{name}": ("npu",) for name in ("level", "aic_metrics", "export_type", "analysis")
    }
    readers |= {"memory.max_entries": ("memory",)}
    tool = run.profiler.tool
    for key, tools in readers.items():
        name = f"profiler.{key}"
        if tool not in tools and (origin := origins.of(name)):
            message = (
                f"{name} is set, and read by profiler.tool={' and '.join(tools)} only;"
                f" profiler.tool is {tool}"
            )
            yield Diagnostic("ignored-setting", message, "leave it out", name, origin)
