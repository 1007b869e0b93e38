"""Low-rank adapters (LoRA, arXiv 2106.09685) on megatron-core's parallel linears.

Megatron-core has q, k and v in one matrix, and gate and up in another. Each of them has an A and a
B of its own here, as in transformers' layout: what is trained is what peft would train, and is
saved as peft saves it. Over the ranks of a tensor parallel (TP) group:

- on a column linear, A [r, in] is whole on each rank and B [out, r] is cut by rows. Each rank's
  gradient of A·x is a part of it: they are summed on the way back;
- on a row linear, A is cut by columns and B is whole on each rank. A·x is a part of it on each
  rank: it is summed.

Under sequence parallelism a rank sees its share of the tokens in front of a column linear and
behind a row linear: A·x is gathered, or reduced and scattered, in the place of that, and the matrix
that is whole has the gradient of these tokens alone; its mark has the ranks' gradients summed, as
those of norms are.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vtool.engines.megatron.weights import (
    LanguageWeights,
    TextShape,
    is_row,
    mark_partition,
    partition_dim,
)
from vtool.models.adapters import adapter_names


def add_megatron_adapters(
    gpt: Any, weights: LanguageWeights, tensors: Mapping[str, Tensor], scale: float
) -> None:
    """Put adapters on the linears of a `GPTModel`, in place, before a DDP wraps it.

    Args:
        tensors: the adapters' tensors among others, whole and by peft's names.
        scale: what B · A is multiplied by.
    """
    for stem, linear in dict(gpt.named_modules()).items():
        if not stem.rpartition(".")[2].startswith("linear_"):
            continue
        # peft's name of A, by the projection that the linear is made of
        first = {
            name.split(".")[-2]: adapter_names(name)[0] for name in weights.names(f"{stem}.weight")
        }
        ranks = {each: tensors[a].shape[0] for each, a in first.items() if a in tensors}
        if not ranks:
            continue
        linear.adapters = Adapters(
            linear, ranks, list(first), weights.shape, scale, row=is_row(f"{stem}.weight")
        )
        linear.register_forward_hook(_add)
        with torch.no_grad():
            for name, parameter in linear.adapters.named_parameters(f"{stem}.adapters"):
                parameter.copy_(weights.cut(name, tensors))
                mark_partition(parameter, name)
                # by which megatron-core sums its gradient over sequence parallel ranks
                whole = partition_dim(name) is None
                parameter.sequence_parallel = linear.config.sequence_parallel and whole


def _add(linear: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    result, bias = output
    return result + linear.adapters(inputs[0]), bias


class Adapters(nn.Module):
    """The adapters of one linear: from its input to what is added to its output, on this rank."""

    def __init__(
        self,
        linear: Any,
        ranks: Mapping[str, int],
        order: list[str],
        shape: TextShape,
        scale: float,
        *,
        row: bool,
    ) -> None:
        """Make them, with whatever was in the memory.

        Args:
            ranks: r of each projection that has an adapter, by transformers' names.
            order: all projections that the linear is made of.
            row: whether the linear is row parallel.
        """
        super().__init__()
        config = linear.config
        self.order, self.shape, self.scale, self.row = order, shape, scale, row
        self.tensor_size: int = config.tensor_model_parallel_size
        self.sequence_parallel: bool = config.sequence_parallel
        rows, columns = linear.weight.shape
        for name, rank in ranks.items():
            self.add_module(name, _Pair(rank, columns, self._rows(name, rows), linear.weight))

    def _rows(self, name: str, rows: int) -> int:
        """Return the rows of a projection's weight on this rank.

        Args:
            rows: those of the linear's weight.
        """
        if len(self.order) < 3:
            return rows // len(self.order)
        heads = self.shape.heads if name == "q_proj" else self.shape.groups
        return heads * self.shape.head_dim // self.tensor_size

    def forward(self, x: Tensor) -> Tensor:
        """Return the adapters' part of the output [..., out], from the linear's input [..., in]."""
        pairs: dict[str, Any] = dict(self.named_children())
        small = self._reduce(torch.cat([pair(x) for pair in pairs.values()], -1))
        split = torch.split(small, [pair.A.shape[0] for pair in pairs.values()], -1)
        added = {
            name: share @ pair.B.t()
            for (name, pair), share in zip(pairs.items(), split, strict=True)
        }
        some: Tensor = next(iter(added.values()))
        if len(self.order) == 1:
            return some * self.scale
        # gate and up have as many rows as each other
        whole = [
            added[name]
            if name in added
            else some.new_zeros(*some.shape[:-1], self._rows(name, 2 * some.shape[-1]))
            for name in self.order
        ]
        if len(self.order) == 2:
            return torch.cat(whole, -1) * self.scale
        # to megatron-core's order: of each query group its q heads, k and v
        groups = self.shape.groups // self.tensor_size
        return torch.cat([one.unflatten(-1, (groups, -1)) for one in whole], -1).flatten(-2) * (
            self.scale
        )

    def _reduce(self, small: Tensor) -> Tensor:
        """Bring together over ranks what is between A and B: [S or its share, B, r] both ways."""
        from megatron.core import tensor_parallel as tp

        if self.row:
            reduce = (
                tp.reduce_scatter_to_sequence_parallel_region
                if self.sequence_parallel
                else tp.reduce_from_tensor_model_parallel_region
            )
        else:
            reduce = (
                tp.gather_from_sequence_parallel_region
                if self.sequence_parallel
                else tp.copy_to_tensor_model_parallel_region
            )
        return reduce(small)  # type: ignore[no-any-return]


class _Pair(nn.Module):
    """A and B of one adapter.

    Called, it gives A · x: a parallel gather of weights that overlaps with the forward pass waits
    in front of such a call.
    """

    def __init__(self, rank: int, columns: int, rows: int, like: Tensor) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.empty(rank, columns, dtype=like.dtype, device=like.device))
        self.B = nn.Parameter(torch.empty(rows, rank, dtype=like.dtype, device=like.device))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.A.t()
