"""The rule about settings that have no effect with the others."""

from collections.abc import Iterator

from vtool.config.origins import COMMAND_LINE, Origins
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Fsdp2, Run
from vtool.diagnostics import Diagnostic, Rule

IGNORED_SETTING = Rule(
    name="ignored-setting",
    code="VT211",
    summary="A setting is given that has no effect with the others.",
    why="Whoever reads the recipe believes that it is in force.",
    bad="model.path=models/qwen model.size=tiny",
    good="model.path=models/qwen model.size=null",
    fix="Leave it out, or set it to null.",
    severity="note",
)


@settings_rule(IGNORED_SETTING)
def micro_batch_size_with_packing(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that data.micro_batch_size is not set together with packing, which does not read it.

    One in the recipe that packing is switched on for is let be: it is there for runs without, and
    cannot be left out from here.
    """
    origin, packing = origins.of("data.micro_batch_size"), origins.of("data.packing")
    if (
        run.data.packing != "none"
        and origin
        and (origin == COMMAND_LINE or (packing and origin.file == packing.file))
    ):
        yield Diagnostic(
            "ignored-setting",
            (
                "data.micro_batch_size is set, but with data.packing=token_budget a forward pass is"
                " as large as data.micro_batch_tokens says"
            ),
            "leave it out",
            "data.micro_batch_size",
            origin,
        )


@settings_rule(IGNORED_SETTING)
def unused_sixteen_bit_range(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that data.image.sixteen_bit_range is set only where values are scaled by it."""
    name = "data.image.sixteen_bit_range"
    if run.data.image.sixteen_bit_range is not None and run.data.image.sixteen_bit == "refuse":
        yield Diagnostic(
            "ignored-setting",
            f"{name} is set, but data.image.sixteen_bit=refuse takes no picture that has such",
            "set data.image.sixteen_bit=scale, or leave the range out",
            name,
            origins.near(name),
        )


@settings_rule(IGNORED_SETTING)
def size_of_a_folder(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that model.size is not set for a model that is loaded from model.path."""
    if (
        run.model.starts_from == "pretrained"
        and run.model.path is not None
        and run.model.size is not None
    ):
        yield Diagnostic(
            "ignored-setting",
            f"model.size is {run.model.size}, but the model in model.path has a size of its own",
            "set model.size=null",
            "model.size",
            origins.near("model.size"),
        )


@settings_rule(IGNORED_SETTING)
def evaluation_of_nothing(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that settings of the evaluation are set only where there are rows to evaluate.

    Only a written setting is noted, never a default.
    """
    if run.data.has("validation") or run.data.has("test"):
        return
    for name in ("evaluation.batch_size", "evaluation.generate.max_new_tokens"):
        if origin := origins.of(name):
            yield Diagnostic(
                "ignored-setting",
                (
                    f"{name} is set, but there is nothing to evaluate: data.validation and"
                    " data.test are empty"
                ),
                "give data.test, or leave it out",
                name,
                origin,
            )


@settings_rule(IGNORED_SETTING)
def groups_of_no_split(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that data.split.group is set only where rows are held back."""
    name = "data.split.group"
    if run.data.split.group is not None and not run.data.split.shares:
        message = f"{name} is set, but no rows are held back"
        help = "set data.split.validation or data.split.test, or leave it out"
        yield Diagnostic("ignored-setting", message, help, name, origins.near(name))


@settings_rule(IGNORED_SETTING)
def weight_of_one_source(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that a source has a weight only where data.train has other sources."""
    if len(run.data.train) == 1 and run.data.train[0].weight is not None:
        name = "data.train.0.weight"
        message = f"{name} is set, but data.train has no other source: an epoch has all its rows"
        yield Diagnostic("ignored-setting", message, "leave it out", name, origins.near(name))


@settings_rule(IGNORED_SETTING)
def offload_to_itself(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that engine.cpu_offload is not set for a run on a CPU, where weights are in any case.

    Of device.kind=auto, `training.setup` says so where it has found a CPU.
    """
    if isinstance(run.engine, Fsdp2) and run.engine.cpu_offload and run.device.kind == "cpu":
        yield Diagnostic(
            "ignored-setting",
            (
                "engine.cpu_offload is true, but device.kind is cpu: the weights are in the CPU's"
                " memory in any case"
            ),
            "set engine.cpu_offload=false",
            "engine.cpu_offload",
            origins.near("engine.cpu_offload"),
        )


@settings_rule(IGNORED_SETTING)
def other_profilers_settings(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that no profiler setting is given that only another tool than the chosen one reads.

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
            yield Diagnostic(
                "ignored-setting",
                (
                    f"{name} is set, and read by profiler.tool={' and '.join(tools)} only;"
                    f" profiler.tool is {tool}"
                ),
                "leave it out",
                name,
                origin,
            )


@settings_rule(IGNORED_SETTING)
def groups_of_frozen_components(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that optim.groups sets nothing for a component that model.freeze leaves untrained."""
    for part in ("vision", "projector", "language"):
        given = getattr(run.optim.groups, part).model_dump(exclude_none=True)
        if given and getattr(run.model.freeze, part):
            name = f"optim.groups.{part}.{next(iter(given))}"
            yield Diagnostic(
                "ignored-setting",
                f"{name} is set, but model.freeze.{part} is true: that part is not trained",
                f"leave it out, or set model.freeze.{part}=false",
                name,
                origins.near(name),
            )


@settings_rule(IGNORED_SETTING)
def min_lr_ratio_of_constant_schedule(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that optim.min_lr_ratio is not set with a constant learning rate."""
    name = "optim.min_lr_ratio"
    if run.optim.schedule == "constant" and (origin := origins.of(name)):
        message = f"{name} is set, but optim.schedule is constant: the learning rate does not fall"
        help = "leave it out, or set optim.schedule=cosine"
        yield Diagnostic("ignored-setting", message, help, name, origin)
