"""Settings `tracking`: the viewers that the numbers of metrics.jsonl go to as well."""

from typing import Annotated, ClassVar, Literal, get_args

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
    """The project that the run is in."""


class Mlflow(Settings):
    """MLflow: in the run's folder, in mlflow.db, or on a server of one's own."""

    arrival: ClassVar = ActsLater()
    kind: Literal["mlflow"]
    """The tracker."""
    uri: str | None = Field(default=None, min_length=1)
    """The tracking URI. Default: mlflow.db in the run's folder, which needs no network."""
    experiment: str = Field(default="vtool", min_length=1)
    """The experiment that the run is in."""


class Trackio(Settings):
    """trackio, in its own folder, where `trackio show` looks (TRACKIO_DIR)."""

    arrival: ClassVar = ActsLater()
    kind: Literal["trackio"]
    """The tracker."""
    project: str = Field(default="vtool", min_length=1)
    """The project that the run is in."""


Tracker = Annotated[TensorBoard | Wandb | Mlflow | Trackio, Field(discriminator="kind")]
TRACKERS: tuple[str, ...] = tuple(
    get_args(member.model_fields["kind"].annotation)[0] for member in get_args(get_args(Tracker)[0])
)
"""The kinds, each the name of its package."""
