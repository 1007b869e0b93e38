"""Attention masks: one reference, and its form for each consumer.

The reference is `allowed`, bool [B, 1, Sq, Sk], True where a query may attend to a key. Consumers
disagree about shape and about what True means; a mask of the wrong polarity trains, and nobody
notices (verl#5768, #5904, reverted by #5942; #5945, #7055, #7372). Each converter refuses what
cannot be meant. Nothing here makes a float tensor: at 32k tokens a bool mask is 1 GiB, a float one
4 (verl#7055).
"""

from collections.abc import Sequence
from itertools import accumulate
from math import lcm
from operator import index
from typing import SupportsIndex

import torch
from torch import Tensor
from torch.nn.functional import pad

# The side of the mask that stands for any causal one (torch_npu's `npu_fusion_attention`,
# sparse_mode 2, 3 and 4).
COMPRESSED = 2048


def keep_from_lengths(lengths: Sequence[int], *, left: bool = False) -> Tensor:
    """Return which tokens are no padding, bool [B, S], by the length of each row.

    They are the first of a row, or the last, where padding is on the left.

    Raises:
        ValueError: a length is no whole number from 0, or there is none.
    """
    if not len(lengths):
        raise ValueError("there are no rows, and so no tokens")
    counts = torch.tensor([_length(each) for each in lengths])[:, None]
    places = torch.arange(int(counts.max()))
    return (places.flip(0) if left else places) < counts


def _length(given: SupportsIndex) -> int:
    """Return a length; a negative or broken one would make a mask that hides what it should not."""
    try:
        length = index(given)
    except TypeError:
        length = -1
    if length < 0 or isinstance(given, bool):
        raise ValueError(f"a length is a whole number from 0, not {given!r}")
    return length


def allowed_in_rows(keep: Tensor) -> Tensor:
    """Return the mask of causal attention in padded rows, bool [B, 1, S, S].

    Padding is seen by no token but itself, so that its rows of the softmax are not empty.

    Args:
        keep: the tokens that are no padding, bool [B, S].
    """
    _expect(keep, torch.bool, 2, "tokens that are kept")
    length = keep.shape[1]
    allowed = (
        torch.ones(length, length, dtype=torch.bool, device=keep.device)
        .tril_()
        .expand(len(keep), 1, -1, -1)
        & keep[:, None, None]
    )
    allowed.diagonal(dim1=-2, dim2=-1).fill_(True)
    return allowed


def allowed_in_documents(lengths: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Return the mask of causal attention inside each document of a row, bool [1, 1, L, L].

    Document after document: most of the mask is False, and comparing each token with each other
    takes longer (benchmarks/masks.py).

    Raises:
        ValueError: a length is no whole number from 0.
    """
    lengths = [_length(each) for each in lengths]
    allowed = torch.zeros(sum(lengths), sum(lengths), dtype=torch.bool, device=device)
    for end, length in zip(accumulate(lengths), lengths, strict=True):
        allowed[end - length : end, end - length : end] = torch.ones(
            length, length, dtype=torch.bool, device=device
        ).tril_()
    return allowed[None, None]


def to_sdpa(allowed: Tensor) -> Tensor:
    """Return the mask for torch's `scaled_dot_product_attention`: bool, True may attend."""
    return _reference(allowed)


def to_hf_2d(keep: Tensor) -> Tensor:
    """Return the mask for transformers' models: int64 [B, S], 1 for a token that is no padding."""
    return _expect(keep, torch.bool, 2, "tokens that are kept").long()


def megatron_mask(allowed: Tensor) -> Tensor:
    """Return the mask for megatron-core's own attention: bool [B, 1, S, S], True is masked.

    It takes a [B, S] mask too, and is silently wrong with it.
    """
    return _reference(allowed).logical_not()


def to_npu_dense(allowed: Tensor) -> Tensor:
    """Return the mask for `torch_npu.npu_fusion_attention`, layout BNSD and sparse_mode 0.

    bool [B, 1, Sq, Sk], True is masked, contiguous. The operator broadcasts over heads alone.
    """
    return _reference(allowed).logical_not().contiguous()


def to_npu_compressed(device: torch.device | None = None) -> Tensor:
    """Return the mask for `npu_fusion_attention` with sparse_mode 3, whatever the lengths.

    bool [2048, 2048], True above the diagonal. Right only where every block is causal: with no mask
    at all the operator ignores sparse_mode and attends to everything.
    """
    return torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool, device=device).triu_(1)


def to_tnd(lengths: Sequence[int]) -> list[int]:
    """Return where each document ends, for `npu_fusion_attention` with layout TND.

    cu_seqlens without their leading 0, which would silently lose tokens.

    Raises:
        ValueError: a length below 1, or none.
    """
    if not lengths or min(lengths) < 1:
        raise ValueError(
            "documents have at least one token each, and there is at least one; not"
            f" {list(lengths)}"
        )
    return list(accumulate(lengths))


def multiple_of(tensor: int, context: int) -> int:
    """Return the divisor of each row's length under tensor and context parallelism.

    With the latter each rank has two pieces, one from the front and one from the back, so that all
    have as much to do, and each two pieces are shared out among the tensor parallel ranks once
    more. lcm(tensor, 2 · context) would be too little where both are 4.

    Args:
        tensor: ranks among which tokens are shared out where matrices are whole: 1 without sequence
            parallelism.
        context: ranks among which a row's tokens are shared out.
    """
    return context * lcm(tensor, 2) if context > 1 else tensor


def pad_rows(tokens: Tensor, keep: Tensor, multiple: int) -> tuple[Tensor, Tensor]:
    """Pad rows [B, S, …] and their kept tokens [B, S] on the right to a multiple of a length.

    Always both: ids that are padded with a mask that is not are what verl#5904 was.

    Raises:
        ValueError: rows and kept tokens of different shapes.
    """
    _expect(keep, torch.bool, 2, "tokens that are kept")
    if tokens.shape[:2] != keep.shape:
        raise ValueError(
            f"rows of shape {tuple(tokens.shape)} and kept tokens of shape {tuple(keep.shape)} are"
            " not of the same tokens"
        )
    missing = -keep.shape[1] % multiple
    return pad(tokens, (*(0, 0) * (tokens.ndim - 2), 0, missing)), pad(keep, (0, missing))


def unpad_rows(tokens: Tensor, length: int) -> Tensor:
    """Return the first `length` tokens of rows [B, S, …]: undo `pad_rows`."""
    return tokens[:, :length]


def _reference(allowed: Tensor) -> Tensor:
    _expect(allowed, torch.bool, 4, "allowed")
    if allowed.shape[1] != 1:
        raise ValueError(
            f"allowed has shape {tuple(allowed.shape)}: one mask for all heads is wanted, [B, 1,"
            " Sq, Sk]"
        )
    square = allowed[..., -allowed.shape[-2] :]  # fewer queries than keys are the last ones
    if square.shape[-1] == square.shape[-2] and not square.diagonal(dim1=-2, dim2=-1).all():
        raise ValueError(
            "allowed lets some token not look at itself: True means that it may attend. Is this a"
            " mask in which True is masked?"
        )
    return allowed


def _expect(tensor: Tensor, dtype: torch.dtype, dimensions: int, what: str) -> Tensor:
    if tensor.dtype != dtype or tensor.ndim != dimensions:
        shape = tuple(tensor.shape)
        raise ValueError(
            f"{what}: {dtype} with {dimensions} dimensions is wanted, not {tensor.dtype} of shape"
            f" {shape}: a mask of integers indexes"
        )
    return tensor
