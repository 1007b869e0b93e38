"""Settings `lora`: low-rank adapters in the place of the model's own weights."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vtool.config.schema.base import ReadBack, Settings

Module = Annotated[str, Field(min_length=1)]


class Lora(Settings):
    """Low-rank adapters (LoRA, arXiv 2106.09685).

    They add scale · B · A to the weights of linear layers, and A and B alone are trained.
    """

    arrival: ClassVar = ReadBack("vtool.models.observe_model:observe_adapters")
    rank: int = Field(default=16, ge=1)
    """The size of the adapters: the rows of A, and the columns of B.

    A higher rank can learn more, and takes more memory and a larger file: 8 to 64 are usual.
    """
    alpha: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The strength of the adapters: B · A is multiplied by alpha / rank. Default: twice the rank.

    With alpha as a multiple of the rank, another rank needs no other learning rate.
    """
    rslora: bool = False
    """Rank-stabilized (arXiv 2312.03732): the scale is alpha / √rank, so that high ranks learn as
    fast.
    """
    dora: bool = False
    """Weight-decomposed (DoRA, arXiv 2402.09353): each row of W + scale · B · A is scaled to a
    length of its own, which is trained in addition to A and B.
    """
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The fraction of an adapter's inputs that is left out at random in training."""
    targets: tuple[Module, ...] | None = Field(default=None, min_length=1)
    """The linear layers that get an adapter, by ends of names: `q_proj` or `merger.mlp.0`.

    Default: all but the head.
    """
    exclude: tuple[Module, ...] = ()
    """The layers of these that get none after all, named in the same way.

    A part in `model.freeze` gets none in any case.
    """

    base_dtype: Literal["float32", "bfloat16", "nf4"] = "float32"
    """The dtype in which the frozen linear layers are kept, all but the head.

    `bfloat16`: half of their memory, and the same loss and gradients to the bit, with
    model.dtype=bfloat16 and of weights whose files are bfloat16; others are refused. `nf4` (QLoRA):
    those of the language model in four bits and a scale for 64 of them, on engine=ddp; another
    base, which merging keeps.
    """
    modules_to_save: tuple[Module, ...] = ()
    """The modules that are trained whole, and saved with the adapter, named in the same way:
    `merger` (the projector), `lm_head`, `embed_tokens`. No layer inside of them gets an adapter.
    """

    @property
    def scale(self) -> float:
        """The factor of B · A."""
        alpha = 2.0 * self.rank if self.alpha is None else self.alpha
        return alpha / (math.sqrt(self.rank) if self.rslora else self.rank)
