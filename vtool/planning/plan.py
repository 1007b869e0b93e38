"""The plan of a recipe: what a rank needs, whether a GPU has it, and what would make it fit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vtool.config.schema import Ddp, Fsdp2, Megatron, Run
from vtool.data.head_nll import rows_of_block
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.progress import working
from vtool.families import family_facts
from vtool.model_folder import ModelFolder
from vtool.models.nf4 import missing_bitsandbytes
from vtool.planning.measured import MeasuredRows, measure_rows, vocabulary_of
from vtool.planning.micro_batch import Shape, bound_of, passes_of, shape_of
from vtool.planning.model import model_of
from vtool.planning.recompute import Choice, count_blocks, fewest_blocks, with_blocks
from vtool.planning.step import StepNeeds, measure_step
from vtool.training.checkpoint_files import FILE_BYTES

GIB = 2**30
OVERHEAD = 3 * GIB // 2
"""The bytes of a GPU that the driver, its libraries and their communication take: an estimate."""
ERROR = 0.2
"""The part by which a plan may be off (docs/engines.md has what was measured)."""
_NF4 = "lora.base_dtype=nf4"
MFU = 0.4
"""The share of a GPU's peak arithmetic that a step is taken to reach."""


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """The question that a plan answers, besides the recipe: GPUs, memory, sizes of rows, price."""

    gpus: int = 1
    memory: int | None = None
    """Bytes of a GPU; None: whether it fits is not asked."""
    tokens: int | None = None
    images: int | None = None
    peak: float | None = None
    """FLOP/s of a GPU."""
    price: float | None = None
    """The price of a GPU for an hour."""
    reserved: int = OVERHEAD
    """Bytes of `memory` that a rank's tensors do not get."""

    @property
    def room(self) -> int | None:
        """Bytes of a GPU for a rank's tensors."""
        return None if self.memory is None else self.memory - self.reserved


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the recipe, or of the GPUs, that makes it fit."""

    settings: tuple[str, ...]
    gpus: int
    device: int
    """Bytes of a rank's device, after it."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory, traffic and time that each rank of a run needs. All sizes are bytes."""

    asked: PlanQuestion
    shape: Shape
    parameters: int
    trained: int
    step: StepNeeds
    offloaded: bool
    """Weights, gradients and the optimizer's state are in the host's memory."""
    chunks: int
    """The chunks that the head's loss is computed in."""
    logits: int
    """Bytes of the logits of one of them, among the activations."""
    load: int
    """Host memory of a rank while it loads, besides mapped files: the largest tensor."""
    save: int
    """Host memory of a rank while it saves: what it gathers before it writes a file."""
    checkpoint: int
    """Bytes of a checkpoint on the disk, of all ranks."""
    micro_batches: int
    """The micro-batches of a rank in a step; of packed rows, at most."""
    rows: int
    """The rows of a rank in a step; of packed rows, at most."""
    idle: int = 0
    """The ranks that a step has no row for: they compute another's for nothing."""
    steps: int | None = None
    """The steps of the run; None where its rows decide."""
    choice: Choice | None = None
    """The blocks that compute again, where `model.gradient_checkpointing` is `auto`."""
    measured_rows: MeasuredRows | None = None
    """The rows that the shape is of; None where it is the recipe's, or was asked for."""
    changes: tuple[Change, ...] = field(default=())
    """The smallest change with which it fits; where none is known, the one that saves most."""

    @property
    def device(self) -> int:
        """The peak on a rank's device."""
        return _on_device(self.step, offloaded=self.offloaded)

    @property
    def host(self) -> int:
        """The bytes that stay in the host's memory of a rank."""
        return self.step.peak - self.device

    @property
    def fits(self) -> bool | None:
        """True if a GPU has room for it; None where none was named."""
        room = self.asked.room
        return None if room is None else self.device <= room

    @property
    def seconds(self) -> float | None:
        """The time of a step, by the GPU's peak arithmetic."""
        if self.asked.peak is None:
            return None
        return self.micro_batches * self.step.flops / (self.asked.peak * MFU)

    def feeding(self) -> dict[str, float]:
        """Return the images and tokens that a rank's loader must give, a step or a second."""
        each = {"images": self.shape.images, "tokens": self.shape.tokens}
        a_step = {name: self.rows * count for name, count in each.items()}
        return {name: each / (self.seconds or 1) for name, each in a_step.items()}

    def measured(self) -> dict[str, Any]:
        """Return the plan's figures as plain values, for programs."""
        return {
            **{"gpus": self.asked.gpus, "micro_batch": asdict(self.shape)},
            "measured_rows": None if self.measured_rows is None else asdict(self.measured_rows),
            **{"parameters": self.parameters, "trained": self.trained},
            "bytes_of_a_rank": {**self.step.memory, "device": self.device, "host": self.host},
            "logits": {"chunks": self.chunks, "bytes_of_one": self.logits},
            "host_bytes": {"load": self.load, "save": self.save},
            "checkpoint_bytes": self.checkpoint,
            "sent_bytes_a_step": self.step.sent,
            "flops_a_micro_batch": self.step.flops,
            "micro_batches_a_step": self.micro_batches,
            "ranks_without_rows": self.idle,
            "seconds_a_step": self.seconds,
            f"loader_{'a_second' if self.seconds else 'a_step'}": self.feeding(),
            "recompute": None if self.choice is None else asdict(self.choice),
            "memory": self.asked.memory,
            "fits": self.fits,
            "changes": [asdict(each) for each in self.changes],
        }


def make_plan(run: Run, asked: PlanQuestion) -> MemoryPlan:
    """Compute the plan of a recipe.

    Raises:
        Findings: `not-planned`, fatal; `model-does-not-load`.
    """
    if not isinstance(run.engine, Ddp | Fsdp2):
        what = (
            f"engine={run.engine.kind}: no figure is computed for its layouts, and none is guessed"
        )
        raise Findings(
            Diagnostic("not-planned", what, "plan it with engine=fsdp2", "engine.kind"), fatal=True
        )
    if family_facts(run.model.family).is_learnt:
        what = f"the passes of a {run.model.family} are not computed without its weights"
        raise Findings(Diagnostic("not-planned", what, parameter="model.family"), fatal=True)
    measured = None
    if asked.tokens is None and bound_of(run) is None:
        measured = _measured(run)
    try:
        shape = shape_of(run, asked.gpus, asked.tokens, asked.images, measured)
    except ValueError as error:
        raise Findings(Diagnostic("not-planned", str(error)), fatal=True) from error
    vocabulary = vocabulary_of(run) if run.model.path is None else None
    build = partial(model_of, vocabulary=vocabulary)
    module = build(run)
    passes = passes_of(run, asked.gpus, shape)
    head = module.get_output_embeddings().weight
    largest = max(one.numel() * one.element_size() for one in module.parameters())
    whole = sum(one.numel() * one.element_size() for one in module.parameters())
    parameters = sum(one.numel() for one in module.parameters())
    choice = None
    if run.model.gradient_checkpointing == "auto":
        run, choice, (step, trained) = _choose_recompute(run, build, asked, shape)
    else:
        with working("planning a step"):
            step, trained = _measure(run, module, asked.gpus, shape)
    wide = 8 if run.model.dtype == "float64" else 4
    narrow = 2 if run.model.dtype == "bfloat16" else wide
    rows = rows_of_block(len(head), narrow)
    saved = (wide * trained if run.lora else whole) + step.state
    plan = MemoryPlan(
        asked=asked,
        shape=shape,
        parameters=parameters,
        trained=trained,
        step=step,
        offloaded=_is_offloaded(run),
        chunks=-(-shape.predicted // rows),
        logits=min(rows, shape.predicted) * len(head) * narrow,
        load=largest,
        save=min(saved, FILE_BYTES + largest if asked.gpus > 1 else saved),
        checkpoint=saved,
        micro_batches=passes,
        rows=passes if shape.packed else run.rows_of_rank(asked.gpus),
        idle=max(0, asked.gpus - run.data.global_batch_size),
        steps=run.train.steps,
        choice=choice,
        measured_rows=measured,
    )
    if plan.fits is not False:
        return plan
    with working("looking for what makes it fit"):
        return replace(plan, changes=tuple(_changes(run, plan, build)))


def _measured(run: Run) -> MeasuredRows:
    """Measure rows that the recipe does not bound.

    Raises:
        Findings: of rows that cannot be read; `not-planned` of a model's folder without tokenizer.
    """
    try:
        with working("measuring the rows"):
            return measure_rows(run)
    except Findings as findings:
        first = next(iter(findings.diagnostics))
        if first.rule != "model-does-not-load":
            raise
        what = f"the recipe does not bound its rows, and they cannot be measured: {first.message}"
        help = (
            "add --tokens N, the length of the longest, which `vtool verify` prints (tokens a row:"
            " … to N), or set data.max_length"
        )
        raise Findings(Diagnostic("not-planned", what, help), fatal=True) from findings


def _measure(run: Run, module: Any, gpus: int, shape: Shape) -> tuple[StepNeeds, int]:
    """Return the step, and the number of the trained parameters."""
    try:
        step = measure_step(run, module, gpus, shape)
    except Findings:
        raise
    except Exception as error:  # a model may look at values, of which a plan has none
        text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        what = f"the step of {type(module).__name__} cannot be computed without values: {text}"
        raise Findings(Diagnostic("not-planned", what), fatal=True) from error
    return step, sum(one.numel() for one in module.parameters() if one.requires_grad)


def _choose_recompute(
    run: Run, build: Callable[[Run], Any], asked: PlanQuestion, shape: Shape
) -> tuple[Run, Choice, tuple[StepNeeds, int]]:
    """Return the run with the fewest blocks that compute again, such that it fits; and its step.

    The part by which a plan may be off is left free where it can be. All of them compute again
    where it does not fit otherwise, and where no memory was named.
    """
    of, tower = count_blocks(run, build(run))
    steps: dict[int, tuple[StepNeeds, int]] = {}

    def measure(blocks: int) -> int:
        changed = with_blocks(run, blocks, of)
        with working(f"planning a step in which {blocks} of {of} blocks compute again"):
            steps[blocks] = _measure(changed, build(changed), asked.gpus, shape)
        return _on_device(steps[blocks][0], offloaded=_is_offloaded(run))

    if asked.room is None:
        measure(of)
        return with_blocks(run, of, of), Choice(of, of, tower, None), steps[of]
    found = fewest_blocks(measure, tower, of, asked.room / (1 + ERROR))
    blocks = of if found is None else found
    without = _on_device(steps[0][0], offloaded=_is_offloaded(run))
    return with_blocks(run, blocks, of), Choice(blocks, of, tower, without), steps[blocks]


def _is_offloaded(run: Run) -> bool:
    return isinstance(run.engine, Fsdp2) and run.engine.cpu_offload


def _on_device(step: StepNeeds, *, offloaded: bool) -> int:
    on_host = ("weights", "gradients", "optimizer") if offloaded else ()
    return sum(size for kind, size in step.memory.items() if kind not in on_host)


def _changes(run: Run, plan: MemoryPlan, build: Callable[[Run], Any]) -> Iterator[Change]:
    """Yield the smallest change with which a run fits, or the one of all tried that saves most."""
    room, gpus = plan.asked.room, plan.asked.gpus
    assert room is not None, "whether it fits was asked"
    best: Change | None = None
    for chosen, changed in changes_to_fit(run, gpus):
        step, _ = _measure(
            changed,
            build(changed),
            gpus,
            shape_of(changed, gpus, plan.asked.tokens, plan.asked.images, plan.measured_rows),
        )
        size = _on_device(step, offloaded=_is_offloaded(changed))
        if size < (best.device if best else plan.device):
            best = Change(chosen, gpus, size)
        if size <= room:
            break
        most = changed.data.global_batch_size
        if isinstance(changed.engine, Fsdp2) and (more := _more_gpus(step, gpus, room, most)):
            best = Change(chosen, *more)
            break
    if best is not None:
        yield best


def changes_to_fit(run: Run, gpus: int) -> Iterator[tuple[tuple[str, ...], Run]]:
    """Yield changes that may make a run fit, as they are typed, each with the changed run.

    From the cheapest to the dearest: each change by itself, then all together up to it.
    """
    found = list(_candidates(run, gpus))
    first = [found[: count + 1] for count in range(1, len(found))]
    for several in [*([each] for each in found), *first]:
        sharded = any(isinstance(update.get("engine"), Fsdp2) for _, update in several)
        together = [each for each in several if not sharded or each[0] != _NF4]
        # of several engines the last one is meant, and the others' settings are not its own
        engines = [name for name, update in together if "engine" in update]
        chosen = {name: update for name, update in together if name not in engines[:-1]}
        changed = run
        for update in chosen.values():
            changed = _updated(changed, update)
        yield tuple(chosen), changed


def _more_gpus(step: StepNeeds, gpus: int, room: int, most: int) -> tuple[int, int] | None:
    """Return how many GPUs would do, and a rank's bytes then.

    What is shared out shrinks; what is gathered and kept for the backward pass stays.

    Args:
        step: of a rank now.
        gpus: now.
        room: bytes of a GPU.
        most: rows of a step: more GPUs than these have nothing to do. 16 times as many are the most
            that are proposed.
    """
    shared = sum(step.memory[kind] for kind in ("weights", "gradients", "optimizer"))
    for factor in range(2, 1 + min(16, most // gpus)):
        size = step.peak - shared + shared // factor
        if size <= room:
            return gpus * factor, size
    return None


def _candidates(run: Run, gpus: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield changes of a recipe that save memory, each with what it updates, by group."""
    data, engine = run.data, run.engine
    if _has_narrow_files(run):
        yield "lora.base_dtype=bfloat16", {"lora": {"base_dtype": "bfloat16"}}
    # of a rank that gets one row, it changes nothing
    several = data.micro_batch_size not in (1, "auto") and run.rows_of_rank(gpus) > 1
    if data.packing == "none" and several:
        yield "data.micro_batch_size=1", {"data": {"micro_batch_size": 1}}
    if isinstance(engine, Ddp) and gpus > 1 and not engine.gradient_as_bucket_view:
        view = engine.model_copy(update={"gradient_as_bucket_view": True})
        yield "engine.gradient_as_bucket_view=true", {"engine": view}
    if run.model.gradient_checkpointing != "full":
        again = {"gradient_checkpointing": "full"}
        yield "model.gradient_checkpointing=full", {"model": again}
    wide = run.optim.states == "float32" and run.model.dtype != "float64"
    if wide and not isinstance(engine, Megatron):
        yield "optim.states=8bit", {"optim": {"states": "8bit"}}
    lora = run.lora
    if isinstance(engine, Ddp) and lora and lora.base_dtype != "nf4" and _can_be_packed(run):
        yield _NF4, {"lora": {"base_dtype": "nf4"}}
    if lora and lora.base_dtype == "nf4":  # other engines refuse it
        return
    if isinstance(engine, Ddp) and gpus > 1:
        yield "engine=fsdp2", {"engine": Fsdp2(kind="fsdp2")}
    # on a CPU there is nowhere to offload to, and the setting is refused
    if run.device.kind != "cpu" and not _is_offloaded(run):
        offloading = Fsdp2(kind="fsdp2", cpu_offload=True)
        words = "engine.cpu_offload=true"
        yield (
            words if isinstance(engine, Fsdp2) else f"engine=fsdp2 {words}",
            {"engine": offloading},
        )


def _has_narrow_files(run: Run) -> bool:
    """Return whether the base of a run with adapters is in bfloat16, and could be kept so."""
    lora, model = run.lora, run.model
    if lora is None or lora.base_dtype != "float32" or lora.dora or model.path is None:
        return False
    config = ModelFolder(Path(model.path)).config
    saved = config.get("dtype", config.get("torch_dtype"))
    return bool(model.dtype == saved == "bfloat16")


def _can_be_packed(run: Run) -> bool:
    """Return whether the base of a run with adapters on ddp could be in NF4, and planned here."""
    lora = run.lora
    known = missing_bitsandbytes() is None and run.device.kind != "npu"
    return lora is not None and not lora.dora and run.model.dtype != "float64" and known


def _updated(run: Run, update: Mapping[str, Any]) -> Run:
    """Return a run with groups replaced, or with some of their settings."""
    groups = {
        name: getattr(run, name).model_copy(update=new) if isinstance(new, dict) else new
        for name, new in update.items()
    }
    return run.model_copy(update=groups)
