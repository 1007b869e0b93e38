"""Settings `model`: which network, and where its weights come from."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WrapValidator

from vtool.config.schema.base import ActsLater, OtherWords, ReadBack, Settings
from vtool.families import FAMILIES, can_train

if TYPE_CHECKING:
    FamilyName = str
else:
    _Own = Literal[tuple(FAMILIES)]
    # any other type of transformers is one too; a typing error is told the names of ours
    FamilyName = Annotated[
        _Own,
        WrapValidator(
            lambda given, own: given if isinstance(given, str) and can_train(given) else own(given),
            json_schema_input_type=_Own | str,
        ),
        OtherWords("another image-text-to-text type of transformers"),
    ]

_BY_CONFIG = ReadBack("vtool.models.observe_model:observe_config")
_BY_MODEL = ReadBack("vtool.models.observe_model:observe_layers")


def _in_words(value: Any) -> Any:
    return ("full" if value else "none") if isinstance(value, bool) else value


_Blocks = Annotated[int, Field(ge=1)] | Literal["none", "full", "auto"]
Recompute = Annotated[_Blocks, BeforeValidator(_in_words, json_schema_input_type=_Blocks | bool)]


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
    """The model family: Qwen2-VL, Qwen2.5-VL, Qwen3-VL, with experts too, Qwen3.5, or GLM-4.1V.

    With `path`, it is found in the folder's config.json, unless a recipe of yours says it; there it
    may be any image-text-to-text type of transformers, such as `gemma3`, whose processor and class
    are learnt from the folder.
    """
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
    family's modeling file, edited, or a class derived from its own. The file is imported, and so
    run. Null: transformers' own.
    """
    init: Literal["pretrained", "random"] | None = None
    """The source of the weights. Default: `pretrained` with a path, else `random`."""
    size: Annotated[Literal["tiny"] | None, _BY_CONFIG] = None
    """The size of a random model; a later `path` takes its place."""
    dtype: Annotated[
        Literal["float32", "bfloat16", "float64"], ReadBack("vtool.engines.contract:Engine.observe")
    ] = "float32"
    """The compute dtype.

    Weights, gradients and the optimizer's state stay float32 under bfloat16 (autocast).
    """
    attention: Annotated[
        Literal["sdpa", "varlen", "flash_attention_2", "flash_attention_3", "eager"], _BY_MODEL
    ] = "sdpa"
    """The attention of the language model and of the vision tower. `sdpa`: torch's, for each

    document of a packed row and each window of an image by itself. `varlen`: all of them in one
    call, torch's `varlen_attn` on CUDA, in bfloat16, and `npu_fusion_attention` on an NPU; padded
    rows, and all on a CPU, as with `sdpa`. `flash_attention_2`, `flash_attention_3`: by
    FlashAttention, on CUDA, where it is installed. `eager`: transformers' plain one.
    """
    gradient_checkpointing: Annotated[Recompute, _BY_MODEL] = "none"
    """Blocks that keep only what goes into them, and compute the rest again in the backward pass:

    the same gradients to the bit, less memory, more time. `full`: all of them. A number: the first
    so many in the order of computation, those of the vision tower, then the layers of the language
    model. `auto`: as few as fit into the memory that is free, by `vtool plan`'s figures, and the
    part by which these may be off; on ddp and fsdp2. `true` and `false` are read as `full` and
    `none`.
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

    def recomputed(self, blocks: int) -> int:
        """Return how many of so many blocks, the first ones, compute activations again.

        Until a run has chosen for `auto`, it is all of them.
        """
        asked = self.gradient_checkpointing
        if isinstance(asked, int):
            return min(asked, blocks)
        return 0 if asked == "none" else blocks
