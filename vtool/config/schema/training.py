"""Settings `optim`, `engine`, `train`, `checkpoint` and `evaluation`."""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, create_model

from vtool.config.schema.base import ActsLater, ReadBack, Settings
from vtool.config.schema.megatron import Megatron

_BY_ENGINE = ReadBack("vtool.engines.contract:Engine.observe")
_BY_GROUPS = ReadBack("vtool.training.optimizer:observe_parameter_groups")
_BY_SCHEDULE = ReadBack("vtool.training.schedule:observe_schedule")
OF_ITS_OWN = ("auto", "never", "extend")
"""The values of `checkpoint.resume` that name no other folder."""
WSD_DECAY = 0.1
"""The part of a `wsd` schedule's steps, after the warm-up, in which the learning rate falls."""
Beta = Annotated[float, Field(ge=0, lt=1)]


class Part(Settings):
    """The optimizer's settings for one part of the model. One left out is as for the others."""

    arrival: ClassVar = _BY_GROUPS
    lr: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The highest learning rate; it rises and falls as `optim.lr` does."""
    weight_decay: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The weight decay."""


class Parts(Settings):
    """Learning rates and decays of parts of the model, by the names of `model.freeze`."""

    vision: Part = Part()
    projector: Part = Part()
    language: Part = Part()


class Optim(Settings):
    """The optimizer and its learning rate."""

    arrival: ClassVar = _BY_GROUPS
    name: Literal["adamw"] = "adamw"
    """The optimizer."""
    states: Literal["float32", "8bit"] = "float32"
    """The dtype of the running means of a gradient and of its square.

    `8bit` (engines `ddp` and `fsdp2`): in eight bits, with a scale for each block
    of at most 256, of weights with at least 4096 elements; a quarter of the memory.
    """
    lr: Annotated[float, _BY_SCHEDULE] = Field(gt=0, allow_inf_nan=False)
    """The highest learning rate, reached when the warm-up ends.

    Usual for a trained model: 1e-5 for all weights, 1e-4 for adapters. A shipped recipe's rate for
    all weights is 1e-4 where a recipe of a trained model (not of random weights) adds `lora` to it,
    and sets none.
    """
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """The shares kept at each step of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-8, gt=0, allow_inf_nan=False)
    """Keeps the division by the running mean of the square away from 0."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Decoupled decay, of tensors with two or more dimensions only."""
    clip_norm: Annotated[float | None, ActsLater()] = Field(default=1.0, gt=0, allow_inf_nan=False)
    """The gradient's largest norm over all ranks; null does not clip."""
    schedule: Annotated[Literal["cosine", "linear", "wsd", "constant"], _BY_SCHEDULE] = "cosine"
    """The fall of the learning rate after the warm-up, which ends after the last step, or none.

    `wsd` (warm-up, stable, decay) stays at `lr` and falls in the last tenth, linearly.
    """
    min_lr_ratio: Annotated[float, _BY_SCHEDULE] = Field(default=0.0, ge=0, lt=1)
    """The learning rate at which a fall ends, as a share of the highest one."""
    warmup_steps: Annotated[int, _BY_SCHEDULE] = Field(default=0, ge=0)
    """Steps in which the learning rate rises to `lr`, linearly."""
    warmup_ratio: Annotated[float | None, _BY_SCHEDULE] = Field(default=None, ge=0, lt=1)
    """The share of all steps in which it rises, to the nearest step, instead of `warmup_steps`.

    Of the two, the one that is given later counts: one of yours takes the place of a recipe's.
    """
    groups: Parts = Parts()

    def warmup(self, total: int) -> int:
        """Return the steps of the warm-up in a run of `total` steps.

        A share leaves at least one step at the highest rate.
        """
        if self.warmup_ratio is None:
            return self.warmup_steps
        return min(round(self.warmup_ratio * total), max(0, total - 1))

    def is_flat(self, total: int) -> bool:
        """Return whether all steps of a run, its warm-up left out, have the highest rate."""
        steps = total - (0 if self.warmup(total) == 1 else self.warmup(total))
        return self.schedule == "constant" or (self.schedule == "wsd" and steps * WSD_DECAY <= 1)

    def treatment(self, part: str, dimensions: int) -> tuple[float, float]:
        """Return a parameter's learning rate divided by `lr`, and its weight decay.

        The decay is 0 for biases and norms.
        """
        own: Part = getattr(self.groups, part)
        decay = self.weight_decay if own.weight_decay is None else own.weight_decay
        return (1.0 if own.lr is None else own.lr / self.lr), (decay if dimensions >= 2 else 0.0)


class Ddp(Settings):
    """torch's DistributedDataParallel; with one process, the bare model."""

    arrival: ClassVar = ReadBack("vtool.engines.ddp:observe_ddp")
    kind: Annotated[Literal["ddp"], _BY_ENGINE]
    """The engine that trains."""
    bucket_cap_mb: int = Field(default=25, ge=1)
    """MiB of gradients that are reduced together."""
    gradient_as_bucket_view: bool = False
    """Gradients live in the buckets: saves their memory once."""


class Fsdp2(Settings):
    """torch's FSDP2 (`fully_shard`): ranks share out weights, gradients and optimizer state."""

    arrival: ClassVar = ReadBack("vtool.engines.fsdp2:observe_fsdp2")
    kind: Annotated[Literal["fsdp2"], _BY_ENGINE]
    """The engine that trains."""
    reshard_after_forward: bool = True
    """A block's gathered weights are freed after its forward pass and gathered again for its
    backward: less memory, more traffic.
    """
    cpu_offload: bool = False
    """The shares lie in the CPU's memory, and the optimizer works there.

    On a CPU that is so in any case.
    """


EngineSettings = Annotated[Ddp | Fsdp2 | Megatron, Field(discriminator="kind")]


class Length(Settings):
    """The length of a run, and the weights that it begins with."""

    arrival: ClassVar = ReadBack("vtool.training.observe_run:observe_run")
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps in all."""
    epochs: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Passes over the training rows, instead of `steps`. Of 0.5, or 1.5, the last is a part of one,
    to the next whole step.
    """

    def total(self, steps_per_epoch: int) -> int:
        """Return the number of steps, where so many make an epoch."""
        if self.steps is not None:
            return self.steps
        # what rounding makes of 0.1 · 30 is no step of its own
        return max(1, math.ceil((self.epochs or 0) * steps_per_epoch - 1e-6))

    @property
    def source(self) -> str | None:
        """The setting `train.from`, whose name is a word of Python's."""
        given: str | None = getattr(self, "from")
        return given


_FROM = Field(
    default=None,
    min_length=1,
    description=(
        "The weights to begin with: those of a run, of a checkpoint, or of an export (a whole model"
        " or an adapter). Optimizer, schedule, rows and ledger begin anew; `checkpoint.resume` goes"
        " on exactly."
    ),
)
if TYPE_CHECKING:
    Train = Length
else:  # no class body can name a field `from`
    Train = create_model(
        "Train",
        __base__=Length,
        __doc__=Length.__doc__,
        __module__=__name__,
        **{"from": (Annotated[str | None, ActsLater()], _FROM)},
    )


SCORES = ("validation_nll", "validation_exact_match", "validation_token_accuracy")
"""The scores of an evaluation that may decide something, by their names in metrics.jsonl."""


class Score(Settings):
    """A score of the validation rows."""

    arrival: ClassVar = ActsLater()
    metric: str = Field(default="validation_nll", min_length=1)
    """The score, by its name in metrics.jsonl: `validation_nll`, `validation_exact_match`,
    `validation_token_accuracy`; of one source, `validation_nll/NAME`.
    """
    mode: Literal["min", "max"] | None = None
    """The better values. Default: `min` for an NLL, `max` for the others."""

    @property
    def direction(self) -> str:
        """`mode`, or what it means when left out."""
        return self.mode or ("min" if self.metric.startswith("validation_nll") else "max")


class KeepBest(Score):
    """The checkpoint with the best score so far is kept, whatever `keep_last` says, and exported.

    The test rows are then scored with its weights.
    """


class EarlyStopping(Score):
    """The run ends when the score does not get better."""

    patience: int = Field(ge=1)
    """Evaluations without a better score after which the run ends."""
    min_delta: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The score must be better by more than this."""


class Checkpoint(Settings):
    """Checkpoints: when the run is saved, and what it continues from."""

    arrival: ClassVar = ActsLater()
    every_steps: int | None = Field(default=None, ge=1)
    """Save after every so many steps.

    One is saved at the end, and when the run is asked to stop, in any case.
    """
    keep_last: int = Field(default=2, ge=1)
    """The number of checkpoints that are kept."""
    keep_best: KeepBest | None = None
    asynchronous: bool = False
    """Train on while a checkpoint is written, from a copy in rank 0's memory.

    One that fails ends the run at the next, or at the end.
    """
    resume: str = Field(default="auto", min_length=1)
    """`auto` continues what is in the run's folder, `never` refuses to, else a run's or a
    checkpoint's folder to start from. `extend` continues it to a later end than it was planned
    with.
    """


class Generate(Settings):
    """The generation of answers while evaluating."""

    arrival: ClassVar = ActsLater()
    max_new_tokens: int = Field(default=32, ge=1)
    """The longest answer, in tokens."""


class Evaluation(Settings):
    """Evaluation: when and how the model is scored while it trains, and after."""

    arrival: ClassVar = ActsLater()
    every_steps: int | None = Field(default=None, ge=1)
    """Evaluate on `data.validation` after every so many steps.

    It is evaluated at the end in any case.
    """
    batch_size: int = Field(default=32, ge=1)
    """Rows of one forward pass of one rank while evaluating."""
    generate: Generate = Generate()
    early_stopping: EarlyStopping | None = None
