"""The loss: a sum, never a mean. What it is divided by is known only for the whole global step."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vtool.data.chat import IGNORED
from vtool.data.collate import Batch


def summed_nll(model: Callable[..., Any], batch: Batch) -> Tensor:
    """Σ −log p(target) over the supervised tokens of a batch: a scalar, in fp32 at least.

    Logits are computed only where some row of the batch has a target: with V entries in the
    vocabulary, they are the largest tensor.
    """
    # Lengths that no attention asks for would be silently ignored: setup gives the model one that
    # does (models/attention.py).
    packed = {} if batch.documents is None else {"documents": batch.documents.lengths}
    # [B, K, V]
    logits = model(**batch.inputs, **packed, logits_to_keep=batch.columns, use_cache=False).logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
