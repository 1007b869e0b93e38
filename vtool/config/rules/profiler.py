"""Rules about `profiler`: settings that would record nothing, or that nobody reads.

What needs the device, the number of ranks, or the step that a run resumes from is asked again where
these are known (`vtool.profiling.start`), of the same functions.
"""

from collections.abc import Iterator

from vtool.config.origins import Origins
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Run
from vtool.config.schema.profiler import OFF, Profiler
from vtool.diagnostics import Diagnostic, Origin, Rule

INTERVAL = "profiler.profile_interval"
DEVICES = {"torch": ("cpu", "cuda"), "npu": ("npu",), "nsys": ("cuda",), "memory": ("cuda",)}
"""The kinds of device that a tool records."""


def _near(origins: Origins | None, name: str) -> Origin | None:
    return origins.near(name) if origins else None


def past_the_end(
    given: Profiler, steps: int, origins: Origins | None = None
) -> Iterator[Diagnostic]:
    """Check that the last recorded step is one that the run has."""
    first, last = given.profile_interval
    if last > steps:
        yield Diagnostic(
            "profile-interval",
            f"profiler.profile_interval is {[first, last]}, and the run ends after step {steps}",
            (
                f"{INTERVAL}=[{first},{steps}]"
                if first <= steps
                else "choose steps that the run has, or raise train.steps"
            ),
            INTERVAL,
            _near(origins, INTERVAL),
            f"at most {steps}",
            str(last),
        )


def outside_the_world(
    given: Profiler, world: int, origins: Origins | None = None
) -> Iterator[Diagnostic]:
    """Check that the run has every rank that profiler.ranks names."""
    outside = [rank for rank in given.ranks or () if rank >= world]
    if outside:
        yield Diagnostic(
            "profiler-ranks",
            (
                f"profiler.ranks names {', '.join(map(str, outside))}, and the run has {world}"
                f" rank{'s' * (world > 1)}, from 0"
            ),
            "leave it out for all ranks",
            "profiler.ranks",
            _near(origins, "profiler.ranks"),
            f"below {world}",
            str(outside),
        )


def wrong_device(
    given: Profiler, kind: str, origins: Origins | None = None
) -> Iterator[Diagnostic]:
    """Check that the tool records this kind of device."""
    if given.tool == "none" or kind in DEVICES[given.tool]:
        return
    fits = next((tool for tool, kinds in DEVICES.items() if kind in kinds), "none")
    yield Diagnostic(
        "profiler-device",
        (
            f"profiler.tool is {given.tool}, which records {' and '.join(DEVICES[given.tool])}, and"
            f" the run is on {kind}"
        ),
        f"profiler.tool={fits}",
        "profiler.tool",
        _near(origins, "profiler.tool"),
        fits,
        given.tool,
    )


@settings_rule(
    Rule(
        name="nothing-profiled",
        code="VT240",
        summary=(
            "The profiler's settings record nothing: an interval without a tool, a tool without an"
            " interval, or no rank."
        ),
        why=(
            "Elsewhere such a run trains to its end, and whoever opens its folder finds no profile."
        ),
        bad="profiler.profile_interval=[5,7]",
        good="profiler.profile_interval=[5,7] profiler.tool=torch",
        fix="Give both profiler.tool and profiler.profile_interval, or neither.",
    ),
)
def nothing_profiled(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that a tool and an interval are given together, and that some rank records."""
    given = run.profiler
    if given.tool == "none" and given.profile_interval != OFF:
        yield Diagnostic(
            "nothing-profiled",
            (
                f"profiler.profile_interval is {list(given.profile_interval)}, but profiler.tool is"
                " none"
            ),
            "choose a tool: profiler.tool=torch",
            INTERVAL,
            origins.near(INTERVAL),
        )
    if given.tool != "none" and given.profile_interval == OFF:
        yield Diagnostic(
            "nothing-profiled",
            (
                f"profiler.tool is {given.tool}, but profiler.profile_interval is [-1, -1], which"
                " records nothing"
            ),
            f"name the steps: {INTERVAL}=[5,7]",
            INTERVAL,
            origins.near("profiler.tool"),
        )
    if given.ranks == ():
        yield Diagnostic(
            "nothing-profiled",
            "profiler.ranks is [], so that nobody records",
            "leave it out for all ranks",
            "profiler.ranks",
            origins.near("profiler.ranks"),
        )


@settings_rule(
    Rule(
        name="profile-interval",
        code="VT241",
        summary="The steps that are to be recorded are not steps that the run will take.",
        why=(
            "A profiler that is started too late, or never stopped, writes no file, and most say"
            " nothing: verl compares steps with ==."
        ),
        bad="profiler=torch profiler.profile_interval=[5,3]",
        good="profiler=torch profiler.profile_interval=[3,5]",
        fix=(
            "Name the first and the last step, counted from 1, with room for profiler.warmup before"
            " them, up to the run's last step."
        ),
    ),
)
def profile_interval(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the interval and its warm-up lie within the run.

    The number of steps of a run of epochs depends on the rows.
    """
    if run.profiler.profile_interval == OFF:
        return
    first, last = interval = list(run.profiler.profile_interval)
    begins = 1 + run.profiler.warmup  # the first step that there is room for
    problem = None
    if first < 1:
        problem = (
            "begins before step 1"
            + (", and -1 is off only as [-1, -1]" if first == -1 else "; steps are counted from 1"),
            f"{INTERVAL}=[{begins},{max(last, begins)}]",
        )
    elif last < first:
        problem = (
            f"ends at {last}, before it begins",
            f"{INTERVAL}=[{last if last > 0 else first},{first}]",
        )
    elif run.profiler.starts < 1:
        problem = (
            f"begins at {first}, and {run.profiler.warmup} steps of warm-up do not fit before it",
            f"profiler.warmup={first - 1}, or let the interval begin at {begins}",
        )
    if problem:
        yield Diagnostic(
            "profile-interval",
            f"{INTERVAL} is {interval}: it {problem[0]}",
            problem[1],
            INTERVAL,
            origins.near(INTERVAL),
            seen=str(interval),
        )
    elif run.train.steps is not None:
        yield from past_the_end(run.profiler, run.train.steps, origins)


@settings_rule(
    Rule(
        name="profiler-ranks",
        code="VT242",
        summary="profiler.ranks names a rank twice, or one that the run does not have.",
        why="A rank that is not there records nothing, and nobody misses its file.",
        bad="profiler=torch profiler.ranks=[0,8] launch.nproc=2 data.micro_batch_size=16",
        good="profiler=torch profiler.ranks=[0,1] launch.nproc=2 data.micro_batch_size=16",
        fix="Name ranks from 0 to one less than there are, or leave it out for all.",
    ),
)
def profiler_ranks(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that profiler.ranks names each rank once, and none that the run does not have."""
    given = run.profiler.ranks or ()
    if len(set(given)) < len(given):
        once = ",".join(map(str, sorted(set(given))))
        yield Diagnostic(
            "profiler-ranks",
            f"profiler.ranks is {list(given)}: a rank is named twice",
            f"profiler.ranks=[{once}]",
            "profiler.ranks",
            origins.near("profiler.ranks"),
        )
    if run.launch.nproc is not None:
        yield from outside_the_world(run.profiler, run.launch.nproc, origins)


@settings_rule(
    Rule(
        name="profiler-device",
        code="VT243",
        summary=(
            "The profiler's tool does not record the kind of device that the run is on, or is not"
            " there."
        ),
        why=(
            "torch's profiler only warns where its activities are not there, and Nsight Systems'"
            " range does nothing without nsys."
        ),
        bad="profiler=npu device.kind=cpu",
        good="profiler=torch device.kind=cpu",
        fix=(
            "torch is for CPU and CUDA, npu for Ascend NPUs, nsys for CUDA under `nsys profile`,"
            " memory for CUDA."
        ),
    ),
)
def profiler_device(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the tool records this kind of device: that of `auto` once it is chosen."""
    if run.device.kind != "auto":
        yield from wrong_device(run.profiler, run.device.kind, origins)


@settings_rule(
    Rule(
        name="npu-profiler-level",
        code="VT244",
        summary="The NPU profiler is asked for counters that its level does not collect.",
        why="torch_npu resets them with a line in its log.",
        bad="profiler=npu profiler.npu.level=level0 profiler.npu.aic_metrics=PipeUtilization",
        good="profiler=npu profiler.npu.level=level1 profiler.npu.aic_metrics=PipeUtilization",
        fix="Set profiler.npu.level=level1 or level2, or leave profiler.npu.aic_metrics out.",
    ),
)
def npu_profiler_level(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that counters of AI cores are set with level1 or level2: torch_npu drops them else."""
    npu = run.profiler.npu
    if npu.aic_metrics is not None and npu.level not in ("level1", "level2"):
        name = "profiler.npu.aic_metrics"
        yield Diagnostic(
            "npu-profiler-level",
            (
                f"{name} is {npu.aic_metrics}, which takes level1 or level2, and"
                f" profiler.npu.level is {npu.level}"
            ),
            "profiler.npu.level=level1",
            name,
            origins.near(name),
            "level1 or level2",
            npu.level,
        )
