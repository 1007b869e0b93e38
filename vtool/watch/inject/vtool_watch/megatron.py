"""Differences of Megatron-core: where its head is, whose ranks share it, and its gradients.

Hidden states are [S, B, H] there, and under sequence parallelism each tensor parallel rank has
its share of S. The head is cut over the vocabulary. Gradients are added up in `main_grad`, and the
optimizer may own copies of parameters, or shares of them.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_WRAPPERS = ("DistributedDataParallel", "Float16Module", "FullyShardedDataParallel")


@dataclass(frozen=True)
class ParallelLayout:
    """A `GPTModel`'s spread of tokens and vocabulary over ranks."""

    gpt: Any
    vocabulary: int | None
    """Ids that the loss knows; None: all rows of the head, those that only pad it too."""
    tensor: int
    tensor_rank: int
    shares_tokens: bool
    """Each tensor parallel rank has its part of every row (sequence parallelism)."""
    sizes: dict[str, int]
    """Ranks along each dimension."""

    @property
    def ranks(self) -> list[int]:
        """Ranks of this process's tensor parallel group."""
        return list(torch.distributed.get_process_group_ranks(self._group))

    @property
    def _group(self) -> Any:
        return _state().get_tensor_model_parallel_group()

    def local_head(self) -> Tensor:
        """Return this rank's rows of the head, [V / ranks, H]."""
        gpt = self.gpt
        tied = getattr(gpt, "share_embeddings_and_output_weights", False)
        weight: Tensor = (
            gpt.shared_embedding_or_output_weight() if tied else gpt.output_layer.weight
        )
        return weight

    def whole_head(self) -> Tensor:
        """Return the head [V, H]: a collective of `ranks` where it is cut."""
        weight = self.local_head().detach()
        if self.tensor > 1:
            parts = [torch.empty_like(weight) for _ in range(self.tensor)]
            torch.distributed.all_gather(parts, weight.contiguous(), group=self._group)
            weight = torch.cat(parts)
        return weight[: self.vocabulary]

    def rows(self, local: int) -> int:
        """Count the ids that are solved with, of a head with so many rows on this rank."""
        return min(self.tensor * local, self.vocabulary or self.tensor * local)

    def begin(self, length: int) -> int:
        """Return the place in the whole row of the first of this rank's `length` tokens."""
        return self.tensor_rank * length if self.shares_tokens else 0


class MegatronHead:
    """Stands for the head of a `GPTModel`, whose matrix may belong to its embedding."""

    def __init__(self, layout: ParallelLayout) -> None:
        self._layout = layout

    @property
    def weight(self) -> Tensor:
        """This rank's rows."""
        return self._layout.local_head()


def is_there() -> bool:
    """Return whether this process has imported Megatron-core's parallel state."""
    return "megatron.core.parallel_state" in sys.modules


def layout_of(candidate: Any) -> ParallelLayout | None:
    """Return the layout of the `GPTModel` with a head that a module is or has, or None."""
    if not is_there() or type(candidate).__name__ in _WRAPPERS:
        return None
    for module in candidate.modules():
        if not _is_gpt(module):
            continue
        parallel, config = _state(), getattr(candidate, "config", None)
        size = parallel.get_tensor_model_parallel_world_size()
        text = text_of(config) if hasattr(config, "get_text_config") else None
        return ParallelLayout(
            gpt=module,
            vocabulary=getattr(text, "vocab_size", None),
            tensor=size,
            tensor_rank=parallel.get_tensor_model_parallel_rank(),
            shares_tokens=size > 1 and bool(module.config.sequence_parallel),
            sizes={
                "tp": size,
                "pp": parallel.get_pipeline_model_parallel_world_size(),
                "cp": parallel.get_context_parallel_world_size(),
                "dp": parallel.get_data_parallel_world_size(),
            },
        )
    return None


def _is_gpt(module: Any) -> bool:
    return (
        any(c.__name__ == "GPTModel" and c.__module__.startswith("megatron.") for c in _mro(module))
        and bool(getattr(module, "post_process", False))
        and getattr(module, "output_layer", None) is not None
        and getattr(module.output_layer, "bias", None) is None
    )


def _mro(module: Any) -> Any:
    return type(module).__mro__


def _state() -> Any:
    return sys.modules["megatron.core.parallel_state"]


def text_of(config: Any) -> Any:
    """Return the config of a model's language model, in transformers' models of several parts."""
    get = getattr(config, "get_text_config", None)
    return config if get is None else get()


def is_owned(parameter: Any, owned: set[int]) -> bool:
    """Return whether an optimizer owns a parameter, or the copy that it updates in its place."""
    return id(parameter) in owned or id(getattr(parameter, "main_param", None)) in owned


def is_shared_out(optimizer: Any) -> bool:
    """Return whether Megatron-core's distributed optimizer gives this one shares of parameters."""
    if "megatron.core.optimizer.distrib_optimizer" not in sys.modules:
        return False
    return any(
        type(each).__name__ == "DistributedOptimizer" and each.optimizer is optimizer
        for each in gc.get_objects()
    )
