"""Settings `model`: which network, and where its weights come from."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from vtool.config.schema.base import ActsLater, ReadBack, Settings
from vtool.families import FAMILIES

if TYPE_CHECKING:
    FamilyName = str
else:
    FamilyName = Literal[tuple(FAMILIES)]

_BY_CONFIG = ReadBack("vtool.models.observe_model:observe_config")
_BY_MODEL = ReadBack("vtool.models.observe_model:observe_layers")


class Freeze(Settings):
    """Parts of the model that are not trained."""

    arrival: ClassVar = ReadBack("vtool.training.observe_run:observe_run")
    vision: bool = False
    """The vision tower, without the projector at its end."""
    projector: bool = False
    """The module that turns the tower's features into embeddings of the language model."""
    language: bool = False
    """The language model, with its embedding and its head."""


def trained_components(freeze: Freeze) -> list[str]:
    """Return the components that are not frozen."""
    return [component for component, frozen in freeze.model_dump().items() if not frozen]


class Model(Settings):
    """The network, and the source of its weights."""

    arrival: ClassVar = ActsLater()
    family: Annotated[FamilyName, _BY_CONFIG] = "qwen2_5_vl"
    """The model family."""
    path: str | None = Field(default=None, min_length=1)
    """A Hugging Face folder: config.json, tokenizer, image processor, safetensors. Or the name of a
    model on the hub, as ORGANIZATION/NAME or ORGANIZATION/NAME@REVISION; a folder that is there
    wins.
    """
    revision: str | None = Field(default=None, min_length=1)
    """The revision of a model on the hub: a branch, a tag, or a commit. A run keeps the commit."""
    modeling: Annotated[str | None, ReadBack("vtool.models.observe_model:observe_class")] = Field(
        default=None, min_length=1
    )
    """A class of your own in the place of transformers' of the family, as FILE.py:CLASS: the
    family's modelling file, edited, or a class derived from its own. The file is imported, and so
    run. Null: transformers' own.
    """
    init: Literal["pretrained", "random"] | None = None
    """The source of the weights. Default: `pretrained` with a path, else `random`."""
    size: Annotated[Literal["tiny"] | None, _BY_CONFIG] = None
    """The size of a random model."""
    dtype: Annotated[
        Literal["float32", "bfloat16", "float64"], ReadBack("vtool.engines.contract:Engine.observe")
    ] = "float32"
    """The compute dtype.

    Weights, gradients and the optimizer's state stay float32 under bfloat16 (autocast).
    """
    attention: Annotated[Literal["sdpa", "eager"], _BY_MODEL] = "sdpa"
    """The attention implementation, as transformers names it."""
    gradient_checkpointing: Annotated[bool, _BY_MODEL] = False
    """Keep only what goes into each block, and compute the rest again in the backward pass:

    the same gradients, less memory, more time.
    """
    dummy_visual: Literal["auto", "always", "never"] = "auto"
    """Run the vision tower in micro-batches without images too, for gradients of 0.

    `auto`: if there are images elsewhere in the step. `always`: the optimizer then decays its
    weights in steps of text alone. `never`: one micro-batch without an image then stops a step with
    images on several ranks.
    """

    freeze: Freeze = Freeze()

    @property
    def starts_from(self) -> Literal["pretrained", "random"]:
        """`init`, or what it means when left out."""
        return self.init or ("pretrained" if self.path else "random")
