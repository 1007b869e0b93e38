"""Settings `model`: which network, and where its weights come from."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from vtool.config.schema.base import Settings
from vtool.families import FAMILIES

if TYPE_CHECKING:
    FamilyName = str
else:
    FamilyName = Literal[tuple(FAMILIES)]


class Freeze(Settings):
    """Parts of the model that are not trained."""

    vision: bool = False
    """The vision tower, without the projector at its end."""
    projector: bool = False
    """What turns the tower's features into embeddings of the language model."""
    language: bool = False
    """The language model, with its embedding and its head."""


def trained_components(freeze: Freeze) -> list[str]:
    """Return the components that are not frozen."""
    return [component for component, frozen in freeze.model_dump().items() if not frozen]


class Model(Settings):
    """Which network, and where its weights come from."""

    family: FamilyName = "qwen2_5_vl"
    """The model family."""
    path: str | None = Field(default=None, min_length=1)
    """A Hugging Face folder: config.json, tokenizer, image processor, safetensors."""
    modeling: str | None = Field(default=None, min_length=1)
    """A class of your own in the place of transformers' of the family, as FILE.py:CLASS: the
    family's modelling file, edited, or a class derived from its own. The file is imported, and so
    run. Null: transformers' own.
    """
    init: Literal["pretrained", "random"] | None = None
    """Where the weights come from. Default: `pretrained` with a path, else `random`."""
    size: Literal["tiny"] | None = None
    """The size of a random model."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """The compute dtype.

    Weights, gradients and the optimizer's state stay float32 under bfloat16 (autocast).
    """
    attention: Literal["sdpa", "eager"] = "sdpa"
    """The attention implementation, as transformers names it."""
    gradient_checkpointing: bool = False
    """Keep only what goes into each block, and compute the rest again in the backward pass:

    the same gradients, less memory, more time.
    """
    dummy_visual: Literal["auto", "always", "never"] = "auto"
    """Whether the vision tower runs in micro-batches without images, for gradients of 0: with
    images elsewhere in the step; always, so that the optimizer decays its weights in steps of text
    alone; or never, so that one micro-batch without an image stops a step with images on several
    ranks.
    """

    freeze: Freeze = Freeze()

    @property
    def starts_from(self) -> Literal["pretrained", "random"]:
        """`init`, or what it means when left out."""
        return self.init or ("pretrained" if self.path else "random")
