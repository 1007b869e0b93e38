"""A tiny model of each family, and a batch of text."""

from typing import Any

import torch
from torch import Tensor

from vtool.families.family import load_family
from vtool.families.tokens import TokenIds
from vtool.models.build import implementations

IDS = TokenIds(image=1, video=2, vision_start=3, vision_end=4, end=5, pad=6)
VOCABULARY = 64


def tiny_model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """Random weights, the same each time."""
    from transformers import AutoModelForImageTextToText

    torch.manual_seed(0)
    config = load_family(name).random_config("tiny", VOCABULARY, IDS)
    return AutoModelForImageTextToText.from_config(config, **implementations(dtype, "sdpa")).train()


def text_loss(model: Any) -> Tensor:
    """Return the loss of two rows without an image: a scalar."""
    ids = torch.randint(7, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    logits = model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=torch.zeros_like(ids),
        use_cache=False,
    ).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
