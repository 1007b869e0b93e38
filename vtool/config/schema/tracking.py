"""Settings `tracking`: the viewers that the numbers of metrics.jsonl go to as well."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vtool.config.schema.base import ActsLater, Settings


class TensorBoard(Settings):
    """TensorBoard's own files, in the run's folder under tensorboard/."""

    arrival: ClassVar = ActsLater()
    kind: Literal["tensorboard"]
    """The tracker."""


class Wandb(Settings):
    """Weights & Biases, offline: in the run's folder under wandb/, until `wandb sync` sends it."""

    arrival: ClassVar = ActsLater()
    kind: Literal["wandb"]
    """The tracker."""
    project: str = Field(default="vtool", min_length=1)
    """The project that it is sent to."""


Tracker = Annotated[TensorBoard | Wandb, Field(discriminator="kind")]
