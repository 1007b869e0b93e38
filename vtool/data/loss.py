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
    return cross_entropy(
        _logits(model, batch).flatten(0, 1),
        batch.targets.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )


def scores_by_row(model: Callable[..., Any], batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return, of each row of a batch without packing, three sums over its supervised tokens.

    Returns:
        Σ −log p(target), the tokens, and those of them whose logit is the highest: [B] each.
    """
    logits, targets = _logits(model, batch), batch.targets
    nll = cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
    )
    right = logits.argmax(-1) == targets
    return nll.view_as(targets).sum(1), (targets != IGNORED).sum(1), right.sum(1)


def _logits(model: Callable[..., Any], batch: Batch) -> Tensor:
    """Return the logits [B, K, V] of the positions from which a token is predicted."""
    # Lengths that no attention asks for would be silently ignored: setup gives the model one that
    # does (models/attention.py).
    packed = {} if batch.documents is None else {"documents": batch.documents.lengths}
    logits = model(**batch.inputs, **packed, logits_to_keep=batch.columns, use_cache=False).logits
    wide: Tensor = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide
