"""The settings of a recipe, one class a group. Never imports torch."""

from pathlib import Path
from typing import Annotated, Literal

from vtool.config.schema.base import NotReadable, Settings
from vtool.config.schema.data import Data, Image, Split, Video
from vtool.config.schema.formats import MessagesSource, Source
from vtool.config.schema.load_check import LoadCheck
from vtool.config.schema.lora import Lora
from vtool.config.schema.megatron import Megatron
from vtool.config.schema.model import Freeze, Model, trained_components
from vtool.config.schema.profiler import Profiler
from vtool.config.schema.run import Device, Launch, RunSettings
from vtool.config.schema.tracking import TensorBoard, Tracker, Wandb
from vtool.config.schema.training import (
    Checkpoint,
    Ddp,
    EngineSettings,
    Evaluation,
    Fsdp2,
    Generate,
    Optim,
    Part,
    Train,
)


class Run(Settings):
    """A recipe of kind `sft` after composition and validation: passed down, never changed."""

    kind: Annotated[
        Literal["sft"], NotReadable("it says which schema a recipe has, and is in no object")
    ]
    """The purpose of the recipe: fine-tuning on rows with answers."""
    run: RunSettings
    launch: Launch = Launch()
    model: Model = Model()
    data: Data
    lora: Lora | None = None
    optim: Optim
    engine: EngineSettings = Ddp(kind="ddp")
    device: Device = Device()
    profiler: Profiler = Profiler()
    checkpoint: Checkpoint = Checkpoint()
    evaluation: Evaluation = Evaluation()
    tracking: tuple[Tracker, ...] = ()
    """Trackers that get the run's numbers, besides metrics.jsonl. None of them can end a run."""
    train: Train

    @property
    def folder(self) -> Path:
        """The run's own folder."""
        return Path(self.run.dir or f"runs/{self.run.name}")

    def rows_of_rank(self, world: int) -> int:
        """Return the most rows of a step that one of so many processes gets (`data.plan.share`)."""
        return -(-self.data.global_batch_size // self.sharers(world))

    def sharers(self, world: int) -> int:
        """Return how many of so many processes share the rows of a step: those with rows apart."""
        sharing = self.engine.parallel.sharing if isinstance(self.engine, Megatron) else 1
        return max(1, world // sharing)


RECIPE_KINDS: dict[str, type[Settings]] = {"sft": Run, "load_check": LoadCheck}
"""The schema of each `kind` of recipe."""

__all__ = [
    "RECIPE_KINDS",
    "Checkpoint",
    "Data",
    "Ddp",
    "Device",
    "EngineSettings",
    "Evaluation",
    "Freeze",
    "Fsdp2",
    "Generate",
    "Image",
    "Launch",
    "LoadCheck",
    "Lora",
    "Megatron",
    "MessagesSource",
    "Model",
    "Optim",
    "Part",
    "Profiler",
    "Run",
    "RunSettings",
    "Settings",
    "Source",
    "Split",
    "TensorBoard",
    "Tracker",
    "Train",
    "Video",
    "Wandb",
    "trained_components",
]
