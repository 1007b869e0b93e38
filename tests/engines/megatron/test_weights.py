"""Weights go to megatron-core's layout and come back bit for bit, whatever the shapes.

(That the layout is right: test_model.py.)
"""

import pytest
import torch
from torch import Tensor

from vtool.engines.megatron.weights import (
    TextShape,
    from_megatron,
    hf_names,
    tensor_parallel_share,
    to_megatron,
)

HIDDEN, FEED = 24, 40
LAYER = "decoder.layers.3."
NAMES = (
    "embedding.word_embeddings.weight",
    "output_layer.weight",
    "decoder.final_layernorm.weight",
    f"{LAYER}input_layernorm.weight",
    f"{LAYER}self_attention.linear_qkv.layer_norm_weight",
    f"{LAYER}pre_mlp_layernorm.weight",
    f"{LAYER}mlp.linear_fc1.layer_norm_weight",
    f"{LAYER}self_attention.linear_qkv.weight",
    f"{LAYER}self_attention.linear_qkv.bias",
    f"{LAYER}self_attention.linear_proj.weight",
    f"{LAYER}mlp.linear_fc1.weight",
    f"{LAYER}mlp.linear_fc2.weight",
)


def state(shape: TextShape) -> dict[str, Tensor]:
    """The tensors of a transformers model that the names above are made of."""
    generator = torch.Generator().manual_seed(0)
    query, key = shape.heads * shape.head_dim, shape.groups * shape.head_dim
    sizes = {
        "embed_tokens.weight": (shape.vocabulary, HIDDEN),
        "lm_head.weight": (shape.vocabulary, HIDDEN),
        "q_proj.weight": (query, HIDDEN),
        "k_proj.weight": (key, HIDDEN),
        "v_proj.weight": (key, HIDDEN),
        "q_proj.bias": (query,),
        "k_proj.bias": (key,),
        "v_proj.bias": (key,),
        "o_proj.weight": (HIDDEN, query),
        "gate_proj.weight": (FEED, HIDDEN),
        "up_proj.weight": (FEED, HIDDEN),
        "down_proj.weight": (HIDDEN, FEED),
    }
    names = {part for name in NAMES for part in hf_names(name)}
    return {
        name: torch.randn(
            next((size for end, size in sizes.items() if name.endswith(end)), (HIDDEN,)),
            generator=generator,
        )
        for name in sorted(names)
    }


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize(
    "shape", [TextShape(50, 8, 4, 6), TextShape(48, 4, 4, 2), TextShape(7, 16, 8, 3)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back_is_the_same_to_the_bit(
    shape: TextShape, tp: int, dtype: torch.dtype
) -> None:
    whole = {name: tensor.to(dtype) for name, tensor in state(shape).items()}
    back: dict[str, Tensor] = {}
    for name in NAMES:
        shares = [tensor_parallel_share(name, whole, shape, tp, rank) for rank in range(tp)]
        assert len({share.shape for share in shares}) == 1
        assert all(share.is_contiguous() for share in shares)
        back |= from_megatron(name, shares, shape)
    assert back.keys() == whole.keys()
    for name, tensor in whole.items():
        assert back[name].dtype == dtype
        assert torch.equal(back[name], tensor), name


def test_a_rank_has_the_query_heads_of_its_own_key_heads() -> None:
    """Four query heads, two groups, heads of one feature:

    q0 q1 k0 v0 | q2 q3 k1 v1, the order of megatron-core's `SelfAttention`.
    """
    shape = TextShape(1, 4, 2, 1)
    parts = [torch.tensor([0.0, 1, 2, 3]), torch.tensor([10.0, 11]), torch.tensor([20.0, 21])]
    name = f"{LAYER}self_attention.linear_qkv.bias"
    assert to_megatron(name, parts, shape, 2, 0).tolist() == [0, 1, 10, 20]
    assert to_megatron(name, parts, shape, 2, 1).tolist() == [2, 3, 11, 21]


def test_gate_and_up_are_cut_before_they_are_joined() -> None:
    parts = [torch.arange(4.0)[:, None], torch.arange(10.0, 14)[:, None]]
    assert to_megatron(
        f"{LAYER}mlp.linear_fc1.weight", parts, TextShape(1, 1, 1, 1), 2, 1
    ).flatten().tolist() == [2, 3, 12, 13]


def test_a_vocabulary_that_does_not_divide_is_padded_with_zeros() -> None:
    shape = TextShape(3, 1, 1, 1)
    last = to_megatron("output_layer.weight", [torch.ones(3, 2)], shape, 2, 1)
    assert last.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize(
    "name",
    [
        "decoder.layers.0.mlp.router.weight",
        "decoder.layers.0.self_attention.q_layernorm.weight",
        "lm_head",
    ],
)
def test_a_name_of_another_layout_is_refused(name: str) -> None:
    with pytest.raises(KeyError):
        hf_names(name)
