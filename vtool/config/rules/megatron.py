"""Rules about the engine `megatron`."""

from collections.abc import Iterator, Sequence

from vtool.config import megatron, megatron_versions
from vtool.config.megatron_ddp import Problem, problems
from vtool.config.origins import Origins
from vtool.config.rules.engine import NOT_BUILT_ON_ENGINE
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Megatron, Run
from vtool.diagnostics import Diagnostic, Rule


def no_megatron_core(run: Run) -> str | None:
    """Return why fields cannot be compared with those of megatron-core: it is not installed."""
    needed = isinstance(run.engine, Megatron) and megatron_versions.installed_megatron() is None
    return "megatron-core is not installed here" if needed else None


def _findings(rule: str, found: Sequence[Problem], origins: Origins) -> Iterator[Diagnostic]:
    for one in found:
        yield Diagnostic(rule, one.message, one.help, one.setting, origins.near(one.setting))


@settings_rule(
    Rule(
        name="megatron-ddp-conflict",
        code="VT220",
        summary=(
            "A value of engine.wrap_config or engine.ddp_config contradicts another one, or would"
            " have no effect with it."
        ),
        why=(
            "Megatron-core silently ignores some of these; with a distributed optimizer in"
            " its DDP and a plain one behind it, the weights of the ranks drift apart and no error"
            " is raised (verl#5775)."
        ),
        bad="engine=megatron engine.ddp_config.use_distributed_optimizer=true",
        good="engine=megatron engine.wrap_config.use_distributed_optimizer=true",
        fix="Say it in one place. What follows from another setting is filled in.",
    ),
)
def ddp_conflict(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that no value of wrap_config and ddp_config contradicts another, or is ignored."""
    if isinstance(run.engine, Megatron):
        yield from _findings(
            "megatron-ddp-conflict",
            problems(
                run.engine.wrap_config,
                run.engine.ddp_config,
                dtype=run.model.dtype,
                cpu=run.device.kind == "cpu",
            ),
            origins,
        )


@settings_rule(
    Rule(
        name="not-in-megatron-core",
        code="VT224",
        summary="A field of engine.ddp_config is not one of the megatron-core that is installed.",
        why=(
            "It would fail when the model is wrapped; by a bridge that looks with hasattr, it would"
            " be left out silently."
        ),
        bad=(
            "engine=megatron engine.ddp_config.preserve_fp32_weights=true, with megatron-core 0.17"
        ),
        good="engine=megatron, with megatron-core 0.16.1",
        fix=(
            "Leave the field out, or install the release that vtool is tested with: pip install"
            " 'vtool[megatron]'."
        ),
    ),
    unanswerable=no_megatron_core,
)
def not_in_megatron_core(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the installed megatron-core has each field of ddp_config that is given."""
    if isinstance(run.engine, Megatron) and (there := megatron_versions.installed_megatron()):
        for name in run.engine.ddp_config.model_dump(exclude_none=True):
            if name not in there.fields:
                history = megatron_versions.releases().history(name)
                setting = f"engine.ddp_config.{name}"
                yield Diagnostic(
                    "not-in-megatron-core",
                    f"{setting} {history}; installed is {there.version}, which does not have it",
                    (
                        "leave it out, or install what vtool is tested with: pip install"
                        " 'vtool[megatron]'"
                    ),
                    setting,
                    origins.near(setting),
                    seen=there.version,
                )


@settings_rule(
    Rule(
        name="parallel-sizes",
        code="VT221",
        summary=(
            "engine.parallel.tensor, pipeline and context do not divide the processes of the run,"
            " or the model's heads or layers."
        ),
        why="Each process must get an equal share; what is left over would belong to none.",
        bad="engine=megatron engine.parallel.tensor=3 launch.nproc=2",
        good="engine=megatron engine.parallel.tensor=2 launch.nproc=2",
        fix=(
            "Choose sizes whose product divides the processes: tensor divides heads and key and"
            " value heads, pipeline the layers."
        ),
    ),
)
def parallel_sizes(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the parallel sizes divide the processes, the heads and the layers evenly.

    Without launch.nproc their number is known only to who starts them: `check_shares`.
    """
    yield from check_shares(run, origins, run.launch.nproc)


def check_shares(run: Run, origins: Origins, world: int | None) -> Iterator[Diagnostic]:
    """Yield the `parallel-sizes` of a run of this many processes; None: not known yet."""
    if isinstance(run.engine, Megatron):
        language = megatron.language_of(run.model)
        found = megatron.bad_sizes(run.engine.parallel, world=world, language=language)
        yield from _findings("parallel-sizes", found, origins)


@settings_rule(NOT_BUILT_ON_ENGINE)
def not_built(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that engine=megatron supports the settings, on this device."""
    if isinstance(run.engine, Megatron):
        model, device, adapters = run.model, run.device.kind, run.lora is not None
        yield from _findings(
            "not-built-on-engine",
            megatron.settings_not_built(
                run.engine, family=model.family, dtype=model.dtype, device=device, adapters=adapters
            ),
            origins,
        )


@settings_rule(
    Rule(
        name="needs-transformer-engine",
        code="VT225",
        summary=(
            "engine.parallel.context above 1, or engine.bridge=mbridge, without Transformer Engine,"
            " and so also on a CPU."
        ),
        why=(
            "Attention over several processes, and all of mbridge's layers, are Transformer"
            " Engine's: nothing else can take their place."
        ),
        bad="engine=megatron engine.parallel.context=2 device.kind=cpu",
        good="engine=megatron engine.parallel.context=2 device.kind=cuda",
        fix=(
            "Set engine.parallel.context=1 and engine.bridge=native, or run on CUDA with"
            " Transformer Engine installed."
        ),
    ),
)
def needs_transformer_engine(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that no setting needs Transformer Engine in a run on a CPU.

    The start of a run finds out whether it is installed.
    """
    if isinstance(run.engine, Megatron):
        yield from _findings(
            "needs-transformer-engine",
            megatron.settings_for_transformer_engine(run.engine, device=run.device.kind),
            origins,
        )
