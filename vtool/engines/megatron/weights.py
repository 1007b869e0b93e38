"""Weights between transformers' names and megatron-core's: pure functions on tensors.

Megatron-core joins q, k and v into one matrix and gate and up into another, and spreads matrices
over the ranks of a tensor parallel (TP) group. A tensor of megatron-core goes by its own name in a
`GPTModel`, with the layer's number in the whole model:

- `embedding.word_embeddings.weight`, `output_layer.weight` [V, H]: `embed_tokens`, `lm_head`.
  Cut by rows, padded with zeros.
- `…self_attention.linear_qkv.{weight,bias}`: q, k and v of each query group together,
  `[q … q; k; v]`. Cut by rows, between query groups.
- `…self_attention.linear_proj.weight` [H, heads × D]: `o_proj`. Cut by columns.
- `…mlp.linear_fc1.weight` [2 F, H]: gate and up, each cut, then joined. Cut by rows of each.
- `…mlp.linear_fc2.weight` [H, F]: `down_proj`. Cut by columns.
- `…input_layernorm`, `…pre_mlp_layernorm`, `decoder.final_layernorm`: the norms of the same places.
  Not cut.
- `….adapters.q_proj.A` [r, in] and `….B` [out, r] (see `megatron_lora`): `….q_proj.lora_A` and
  `….lora_B`, by peft's names. A is cut by columns, or B by rows.

Where Transformer Engine joins a norm with the matrix behind it, the norm's name is
`…linear_qkv.layer_norm_weight` or `…linear_fc1.layer_norm_weight`. What is true of a weight is true
of its gradient and of each entry of its optimizer state.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vtool.models.adapters import adapter_names, saved_name

_LANGUAGE = "model.language_model."
"""The beginning of transformers' names of the language model, in the Qwen2-VL layouts."""
TOWER_PREFIX = "model.visual."
"""The beginning of transformers' names of the vision tower."""
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_ADAPTER = re.compile(r"(.+)\.adapters\.(\w+)\.([AB])")
_WHOLE = {
    "embedding.word_embeddings.weight": f"{_LANGUAGE}embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
    "decoder.final_layernorm.weight": f"{_LANGUAGE}norm.weight",
}
_IN_LAYER = {
    "input_layernorm.weight": ("input_layernorm.weight",),
    "self_attention.linear_qkv.layer_norm_weight": ("input_layernorm.weight",),
    "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight",),
    "mlp.linear_fc1.layer_norm_weight": ("post_attention_layernorm.weight",),
    "self_attention.linear_qkv.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "self_attention.linear_qkv.bias": tuple(f"self_attn.{part}_proj.bias" for part in "qkv"),
    "self_attention.linear_proj.weight": ("self_attn.o_proj.weight",),
    "mlp.linear_fc1.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.linear_fc2.weight": ("mlp.down_proj.weight",),
}


@dataclass(frozen=True, slots=True)
class TextShape:
    """Sizes of a language model, by which its matrices are joined and cut.

    `heads` query heads share `groups` key and value heads, of `head_dim` features.
    """

    vocabulary: int
    heads: int
    groups: int
    head_dim: int

    def padded_vocabulary(self, tp: int) -> int:
        """Return the vocabulary in megatron-core, where each TP rank has as many rows."""
        return -(-self.vocabulary // tp) * tp


def name_in_model(name: str, before: int, *, tied: bool) -> str:
    """Return the name in the whole `GPTModel` of a parameter of one pipeline stage.

    Args:
        before: the layers of the stages before it.
        tied: whether the head is the embedding: the last stage then has a copy of that.
    """
    if tied and name == "output_layer.weight":
        return "embedding.word_embeddings.weight"
    found = _LAYER.fullmatch(name)
    return f"decoder.layers.{int(found[1]) + before}.{found[2]}" if found else name


def hf_names(name: str) -> tuple[str, ...]:
    """Return the names of the tensors of transformers that make up one of megatron-core.

    Raises:
        KeyError: for a name that no `GPTModel` of this layout has.
    """
    if adapter := _ADAPTER.fullmatch(name):
        linear, part, which = adapter.groups()
        (weight,) = (weight for weight in hf_names(f"{linear}.weight") if f".{part}." in weight)
        return (adapter_names(weight)["AB".index(which)],)
    if name in _WHOLE:
        return (_WHOLE[name],)
    if not (found := _LAYER.fullmatch(name)):
        raise KeyError(name)
    layer, rest = found.groups()
    return tuple(f"{_LANGUAGE}layers.{layer}.{part}" for part in _IN_LAYER[rest])


def to_megatron(name: str, parts: Sequence[Tensor], shape: TextShape, tp: int, rank: int) -> Tensor:
    """Return the share of one TP rank, of which alone a tensor is read that is a file's.

    Args:
        name: of megatron-core.
        parts: the whole tensors of `hf_names(name)`, in that order.
    """
    kind = _kind(name)
    if kind == "vocabulary":
        rows = shape.padded_vocabulary(tp) // tp
        (whole,) = parts
        own = whole[rank * rows : (rank + 1) * rows]
        return torch.cat([own, own.new_zeros(rows - len(own), whole.shape[1])])
    if kind == "qkv":
        # [G, heads in a group, D, …], of which a rank has as many groups as any other
        grouped = [
            part.reshape(shape.groups, -1, shape.head_dim, *part.shape[1:]).chunk(tp)[rank]
            for part in parts
        ]
        return torch.cat(grouped, 1).flatten(0, 2)
    if kind == "halves":
        return torch.cat([part.chunk(tp)[rank] for part in parts])
    (whole,) = parts
    if kind == "replicated":
        return whole
    return whole.chunk(tp, 1 if kind == "columns" else 0)[rank].contiguous()


def from_megatron(name: str, shares: Sequence[Tensor], shape: TextShape) -> dict[str, Tensor]:
    """Return transformers' whole tensors by name, from the shares of all TP ranks, in order.

    They are bit for bit what `to_megatron` was given.
    """
    names, kind = hf_names(name), _kind(name)
    if kind == "vocabulary":
        return {names[0]: torch.cat(list(shares))[: shape.vocabulary]}
    if kind == "qkv":
        each = shape.heads // shape.groups
        joined = torch.cat(list(shares))
        groups = joined.reshape(shape.groups, each + 2, shape.head_dim, *joined.shape[1:])
        cut = (groups[:, :each], groups[:, each : each + 1], groups[:, each + 1 :])
        return {name: part.flatten(0, 2) for name, part in zip(names, cut, strict=True)}
    if kind == "halves":
        halves = [share.chunk(2) for share in shares]
        return {
            name: torch.cat([half[place] for half in halves]) for place, name in enumerate(names)
        }
    if kind == "replicated":
        return {names[0]: shares[0]}
    return {names[0]: torch.cat(list(shares), 1 if kind == "columns" else 0)}


def tensor_parallel_share(
    name: str, tensors: Mapping[str, Tensor], shape: TextShape, tp: int, rank: int
) -> Tensor:
    """Return the share of one TP rank, from a state dict of transformers: see `to_megatron`."""
    return to_megatron(name, [tensors[part] for part in hf_names(name)], shape, tp, rank)


def partition_dim(name: str) -> int | None:
    """Return the dimension along which a tensor is cut for TP; None where it is whole."""
    return {"columns": 1, "replicated": None}.get(_kind(name), 0)


def is_row(name: str) -> bool:
    """Return true for the weight of a row parallel linear, which is cut along its inputs."""
    return _kind(name) == "columns"


def mark_partition(parameter: nn.Parameter, name: str) -> None:
    """Set the attributes by which megatron-core knows how a parameter is cut for TP.

    It sets them when it fills in weights of its own. Without them its gradient norm takes shares
    for copies of each other.
    """
    dim = partition_dim(name)
    for attribute, value in (
        ("tensor_model_parallel", dim is not None),
        ("partition_dim", -1 if dim is None else dim),
        ("partition_stride", 1),
    ):
        setattr(parameter, attribute, value)


@dataclass(frozen=True, slots=True)
class LanguageWeights:
    """The tensors of transformers that this rank's parameters of a `GPTModel` are made of."""

    shape: TextShape
    tensor_size: int
    tensor_rank: int
    before: int
    """Layers of the stages before this one."""
    tied: bool
    """The head is the embedding."""

    @staticmethod
    def of(gpt: Any, shape: TextShape, tensor_rank: int) -> "LanguageWeights":
        """Return the map of a `GPTModel`."""
        return LanguageWeights(
            shape,
            gpt.config.tensor_model_parallel_size,
            tensor_rank,
            gpt.decoder.layers[0].layer_number - 1,
            gpt.share_embeddings_and_output_weights,
        )

    def names(self, name: str) -> tuple[str, ...]:
        """Return transformers' names of the tensors that a parameter is made of."""
        return hf_names(self._in_model(name))

    def join(self, name: str, shares: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return whole tensors by name, from a parameter's share on each TP rank, in order."""
        return from_megatron(self._in_model(name), shares, self.shape)

    def cut(self, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return this rank's share of a parameter, from whole tensors by name."""
        in_model, tp, rank = self._in_model(name), self.tensor_size, self.tensor_rank
        return tensor_parallel_share(in_model, tensors, self.shape, tp, rank)

    def is_cut(self, name: str) -> bool:
        """Return whether each TP rank has a share of a parameter, not all of it."""
        return partition_dim(self._in_model(name)) is not None

    def _in_model(self, name: str) -> str:
        return name_in_model(name, self.before, tied=self.tied)


class TowerWeights:
    """The tensors of transformers that the vision tower's parameters are.

    Every TP rank has them whole. The methods are those of `LanguageWeights`.
    """

    def names(self, name: str) -> tuple[str, ...]:
        return (saved_name(TOWER_PREFIX + name),)

    def join(self, name: str, shares: Sequence[Tensor]) -> dict[str, Tensor]:
        return {saved_name(TOWER_PREFIX + name): shares[0]}

    def cut(self, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
        return tensors[saved_name(TOWER_PREFIX + name)]

    def is_cut(self, name: str) -> bool:
        return False


def _kind(name: str) -> str:
    if adapter := _ADAPTER.fullmatch(name):
        linear, _, which = adapter.groups()
        if is_row(f"{linear}.weight"):
            return "columns" if which == "A" else "replicated"
        return "replicated" if which == "A" else "rows"
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return "vocabulary"
    rest = name.rpartition("layers.")[2].partition(".")[2]
    if rest.startswith("self_attention.linear_qkv.") and "layer_norm" not in rest:
        return "qkv"
    if rest == "mlp.linear_fc1.weight":
        return "halves"
    return (
        "columns"
        if rest in ("self_attention.linear_proj.weight", "mlp.linear_fc2.weight")
        else "replicated"
    )
