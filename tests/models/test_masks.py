"""Every form of a mask lets the same tokens see each other:

attention in float64 is that of the reference, on all rows that are kept.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models.npu_emulator import npu_fusion_attention
from vtool.models import masks
from vtool.models.masks import (
    allowed_in_documents,
    allowed_in_rows,
    keep_from_lengths,
    megatron_mask,
    multiple_of,
    pad_rows,
    to_hf_2d,
    to_npu_compressed,
    to_npu_dense,
    to_sdpa,
    to_tnd,
    unpad_rows,
)

LENGTHS = (37, 20, 1, 5)
HEADS, WIDTH = 4, 16
KEPT = {
    "right": keep_from_lengths(LENGTHS),
    "left": keep_from_lengths(LENGTHS, left=True),
    "whole": torch.ones(4, 37, dtype=torch.bool),
}


def qkv(rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    q, k, v = (
        torch.randn(rows, HEADS, length, WIDTH, dtype=torch.float64, generator=generator)
        for _ in range(3)
    )
    return q, k, v


def by_hand(keep: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax over what a token may see, one token after the other."""
    out = torch.zeros_like(q)
    for row in range(len(keep)):
        for at in keep[row].nonzero().flatten().tolist():
            seen = [place for place in range(at + 1) if keep[row, place]]
            scores = torch.einsum("nd,nsd->ns", q[row, :, at], k[row][:, seen]) / WIDTH**0.5
            out[row, :, at] = torch.einsum("ns,nsd->nd", scores.softmax(-1), v[row][:, seen])
    return out


def apart(ours: Tensor, theirs: Tensor, keep: Tensor) -> float:
    return float((ours - theirs).transpose(1, 2)[keep].abs().max())


@pytest.mark.parametrize("side", KEPT)
def test_each_consumer_computes_what_the_reference_says(side: str) -> None:
    keep = KEPT[side]
    q, k, v = qkv(*keep.shape)
    allowed, wanted = allowed_in_rows(keep), by_hand(keep, *qkv(*keep.shape))
    assert (
        apart(scaled_dot_product_attention(q, k, v, attn_mask=to_sdpa(allowed)), wanted, keep)
        <= 1e-12
    )
    masked = megatron_mask(allowed)
    # as megatron-core's FusedScaleMaskSoftmax does
    scores = (q @ k.transpose(-1, -2) / WIDTH**0.5).masked_fill(masked, -10000.0)
    assert apart(scores.softmax(-1) @ v, wanted, keep) <= 1e-12
    (dense,) = npu_fusion_attention(
        q, k, v, HEADS, "BNSD", atten_mask=to_npu_dense(allowed), scale=WIDTH**-0.5
    )
    assert apart(dense, wanted, keep) <= 1e-12
    (compressed,) = npu_fusion_attention(
        q, k, v, HEADS, "BNSD", atten_mask=to_npu_compressed(), scale=WIDTH**-0.5, sparse_mode=3
    )
    # causal is all that it says: padding on the left is seen
    assert (apart(compressed, wanted, keep) <= 1e-12) is (side != "left")


def test_documents_in_a_row_see_themselves_alone_in_every_form() -> None:
    q, k, v = qkv(1, sum(LENGTHS))
    one = [part.split(LENGTHS, 2) for part in (q, k, v)]
    wanted = torch.cat(
        [scaled_dot_product_attention(*parts, is_causal=True) for parts in zip(*one, strict=True)],
        2,
    )
    allowed = allowed_in_documents(LENGTHS)
    everything = torch.ones(1, q.shape[2], dtype=torch.bool)
    assert (
        apart(scaled_dot_product_attention(q, k, v, attn_mask=to_sdpa(allowed)), wanted, everything)
        <= 1e-12
    )
    scores = (q @ k.transpose(-1, -2) / WIDTH**0.5).masked_fill(megatron_mask(allowed), -10000.0)
    assert apart(scores.softmax(-1) @ v, wanted, everything) <= 1e-12
    flat = [part[0].transpose(0, 1) for part in (q, k, v)]
    ends = to_tnd(LENGTHS)
    (out,) = npu_fusion_attention(
        *flat,
        HEADS,
        "TND",
        atten_mask=to_npu_compressed(),
        scale=WIDTH**-0.5,
        sparse_mode=3,
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
    )
    assert apart(out.transpose(0, 1)[None], wanted, everything) <= 1e-12
    (short,) = npu_fusion_attention(
        *flat,
        HEADS,
        "TND",
        atten_mask=to_npu_compressed(),
        sparse_mode=3,
        actual_seq_qlen=[0, *ends[:-1]],
        actual_seq_kvlen=[0, *ends[:-1]],
    )
    assert len(short) < len(out)  # what to_tnd leaves out: with it, tokens are lost silently


def test_a_tower_without_causality_is_documents_that_see_all_of_themselves() -> None:
    """Images of a packed tower:

    cu_seqlens of transformers' own, against full attention of each image.
    """
    q, k, v = qkv(1, sum(LENGTHS))
    numbers = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    full = allowed_in_documents(LENGTHS) | allowed_in_documents(LENGTHS).transpose(-1, -2)
    assert torch.equal(full[0, 0], numbers[:, None] == numbers)
    parts = zip(*(part.split(LENGTHS, 2) for part in (q, k, v)), strict=True)
    wanted = torch.cat([scaled_dot_product_attention(*part) for part in parts], 2)
    (out,) = npu_fusion_attention(
        q, k, v, HEADS, "BNSD", atten_mask=to_npu_dense(full), scale=WIDTH**-0.5
    )
    assert float((out - wanted).abs().max()) <= 1e-12


def test_the_emulated_operator_keeps_its_contract() -> None:
    q, k, v = qkv(2, 9)
    causal = scaled_dot_product_attention(q, k, v, is_causal=True)
    (full,) = npu_fusion_attention(q, k, v, HEADS, "BNSD", scale=WIDTH**-0.5, sparse_mode=2)
    # no mask: the mode is ignored
    assert torch.allclose(full, scaled_dot_product_attention(q, k, v), atol=1e-12)
    few = q[:, :, -3:]
    lower = torch.ones(3, 9, dtype=torch.bool).tril(6)
    (mode3,) = npu_fusion_attention(
        few, k, v, HEADS, "BNSD", atten_mask=to_npu_compressed(), scale=WIDTH**-0.5, sparse_mode=3
    )
    assert torch.allclose(
        mode3, scaled_dot_product_attention(few, k, v, attn_mask=lower), atol=1e-12
    )
    assert torch.allclose(mode3, causal[:, :, -3:], atol=1e-12)
    (mode2,) = npu_fusion_attention(
        few, k, v, HEADS, "BNSD", atten_mask=to_npu_compressed(), scale=WIDTH**-0.5, sparse_mode=2
    )
    assert not torch.allclose(mode2, mode3)
    torch.manual_seed(3)
    (dropped,) = npu_fusion_attention(q, k, v, HEADS, "BNSD", scale=WIDTH**-0.5, keep_prob=0.75)
    torch.manual_seed(3)
    assert torch.allclose(
        dropped, scaled_dot_product_attention(q, k, v, dropout_p=0.25), atol=1e-12
    )
    assert not torch.allclose(dropped, full)
    for shape, mode in (((2, 9), 0), ((2, 1, 1, 9), 0), ((9, 9), 3)):
        with pytest.raises(ValueError, match=r"atten_mask of shape|wants"):
            npu_fusion_attention(
                q,
                k,
                v,
                HEADS,
                "BNSD",
                atten_mask=torch.ones(shape, dtype=torch.bool),
                sparse_mode=mode,
            )
    with pytest.raises(TypeError):
        npu_fusion_attention(q, k, v, HEADS, "BNSD", atten_mask=torch.ones(9, 9, dtype=torch.int32))


REFUSED: dict[str, Any] = {
    "integers": lambda: to_sdpa(allowed_in_rows(KEPT["right"]).int()),
    "kept tokens for megatron": lambda: megatron_mask(KEPT["right"]),
    "kept tokens as integers": lambda: allowed_in_rows(KEPT["right"].long()),
    "kept tokens as integers for transformers": lambda: to_hf_2d(KEPT["right"].int()),
    "True is masked": lambda: megatron_mask(megatron_mask(allowed_in_rows(KEPT["right"]))),
    "True is masked, for NPUs": lambda: to_npu_dense(to_npu_dense(allowed_in_rows(KEPT["left"]))),
    "a mask for each head": lambda: to_sdpa(
        allowed_in_rows(KEPT["right"]).expand(-1, HEADS, -1, -1)
    ),
    "ends with a leading 0": lambda: to_tnd([0, 3, 4]),
    "no documents": lambda: to_tnd([]),
    "ids and mask of other rows": lambda: pad_rows(torch.zeros(4, 36), KEPT["right"], 8),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_meant_is_refused_at_the_boundary(what: str) -> None:
    with pytest.raises(
        ValueError, match=r"wanted|may attend|at least one token|not of the same tokens"
    ):
        REFUSED[what]()


@pytest.mark.parametrize(
    ("tensor", "context", "multiple"),
    [(1, 1, 1), (4, 1, 4), (1, 2, 4), (2, 2, 4), (3, 2, 12), (4, 4, 16)],
)
def test_ids_and_mask_are_padded_together_and_come_back(
    tensor: int, context: int, multiple: int
) -> None:
    assert multiple_of(tensor, context) == multiple
    ids, keep = torch.arange(4 * 37).view(4, 37) + 1, KEPT["right"]
    padded, kept = pad_rows(ids, keep, multiple)
    assert padded.shape == kept.shape
    assert padded.shape[1] % multiple == 0
    assert padded.shape[1] - 37 < multiple
    assert torch.equal(padded[kept], ids[keep])
    assert torch.equal(unpad_rows(padded, 37), ids)
    features = torch.randn(4, 37, 3)
    assert torch.equal(unpad_rows(pad_rows(features, keep, multiple)[0], 37), features)


def test_transformers_gets_ones_where_tokens_are_kept() -> None:
    assert to_hf_2d(keep_from_lengths([2, 3])).tolist() == [[1, 1, 0], [1, 1, 1]]
    assert to_hf_2d(keep_from_lengths([2, 3], left=True)).tolist() == [[0, 1, 1], [1, 1, 1]]


class _Made(TorchDispatchMode):
    """Notes every large tensor that is made."""

    def __init__(self, at_least: int) -> None:
        super().__init__()
        self.at_least, self.dtypes, self.count = at_least, set[torch.dtype](), 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        out = function(*arguments, **(keywords or {}))
        if isinstance(out, Tensor) and out.numel() >= self.at_least:
            self.dtypes.add(out.dtype)
            self.count += 1
        return out


FORMS: dict[str, Any] = {
    "to_sdpa of documents": lambda length: to_sdpa(allowed_in_documents([length // 4] * 4)),
    "to_sdpa of rows": lambda length: to_sdpa(allowed_in_rows(keep_from_lengths([length]))),
    "to_megatron of documents": lambda length: megatron_mask(
        allowed_in_documents([length // 4] * 4)
    ),
    "to_megatron of rows": lambda length: megatron_mask(
        allowed_in_rows(keep_from_lengths([length]))
    ),
    "to_npu_dense": lambda length: to_npu_dense(allowed_in_rows(keep_from_lengths([length]))),
    "to_npu_compressed": lambda length: to_npu_compressed(),
    "to_hf_2d": lambda length: to_hf_2d(keep_from_lengths([length])),
}


@pytest.mark.parametrize("form", FORMS)
def test_no_mask_goes_through_floats(form: str) -> None:
    """verl#7055:

    of 32k tokens a float mask is 4 GiB. Here at 8k; at 32k: `python -m benchmarks.masks`.
    """
    length = 8192
    with _Made(2048) as made:
        FORMS[form](length)
    assert made.count > 0
    assert not [dtype for dtype in made.dtypes if dtype.is_floating_point]


def test_the_compressed_mask_is_the_size_that_the_operator_wants() -> None:
    assert tuple(to_npu_compressed().shape) == (masks.COMPRESSED, masks.COMPRESSED) == (2048, 2048)


@pytest.mark.parametrize("lengths", [[2, -1], [2.5, 3], [float("nan")], ["3"], [True, 2]])
def test_a_length_that_is_none_is_refused(lengths: list[Any]) -> None:
    for make in (keep_from_lengths, allowed_in_documents):
        with pytest.raises(ValueError, match="a length is a whole number from 0, not "):
            make(lengths)


def test_lengths_of_numpy_and_of_torch_are_taken() -> None:
    expected = keep_from_lengths([0, 2])
    assert torch.equal(keep_from_lengths(np.array([0, 2])), expected)  # type: ignore[arg-type]
    assert torch.equal(keep_from_lengths(torch.tensor([0, 2])), expected)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there are no rows"):
        keep_from_lengths([])
