"""The loss: a sum, never a mean. What it is divided by is known only for the whole global step."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vtool.data.chat import IGNORED
from vtool.data.collate import Batch
from vtool.data.head_nll import head_gives_nll


def summed_nll(model: Callable[..., Any], batch: Batch, module: nn.Module | None = None) -> Tensor:
    """Return Σ −log p(target) over a batch's supervised tokens: a scalar, in fp32 at least.

    Args:
        model: called with the batch's inputs.
        batch: the rows.
        module: the bare model inside `model`, of a class of transformers: its head is asked for the
            sum itself, in chunks (`vtool.data.head_nll`). None: for logits. These are computed only
            where some row of the batch has a target: with V entries in the vocabulary, they are the
            largest tensor.
    """
    with nullcontext(False) if module is None else head_gives_nll(module, batch.targets) as given:
        out = _head_output(model, batch)
    if given:
        return out
    return cross_entropy(
        _wide(out).flatten(0, 1),
        batch.targets.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )


def scores_by_row(model: Callable[..., Any], batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return, of each row of a batch without packing, three sums over its supervised tokens.

    Returns:
        Σ −log p(target), the tokens, and those of them whose logit is the highest: [B] each.
    """
    logits, targets = _wide(_head_output(model, batch)), batch.targets
    nll = cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
    )
    right = logits.argmax(-1) == targets
    return nll.view_as(targets).sum(1), (targets != IGNORED).sum(1), right.sum(1)


def _head_output(model: Callable[..., Any], batch: Batch) -> Tensor:
    """Return the head's output at the positions from which a token is predicted.

    Logits [B, K, V], if nobody asks it for something else.
    """
    # Lengths that no attention asks for would be silently ignored: setup gives the model one that
    # does (models/attention.py).
    output = model(**batch.arguments(), logits_to_keep=batch.columns, use_cache=False)
    logits: Tensor = output.logits
    if logits.ndim == 3 and logits.shape[1] != len(batch.columns):  # not all classes heed it
        logits = logits[:, batch.columns]
    return logits


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
