"""Low-rank adapters (LoRA, arXiv 2106.09685) beside megatron-core's column and row parallel
linears.

Megatron-core has q, k and v in one matrix, and gate and up in another; an adapter of transformers'
layout has an A and a B for each of
them, and so has one here: what is trained is what peft would train, and is saved as peft saves it.
Over the ranks of a tensor parallel (TP) group:

| linear | A [r, in] | B [out, r] | between the two | |---|---|---|---| | column | whole on each
rank | rows cut | every rank's gradient of A·x is a part of it: they are summed on the way back | |
row | columns cut | whole on each rank | A·x is a part of it: it is summed |

Under sequence parallelism a rank sees its share of the tokens in front of a column linear and
behind a row linear: A·x is gathered, or reduced and scattered, in the place of that, and the matrix
that is whole has the gradient of these tokens alone; its mark has the ranks' gradients summed, as
those of norms are.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vtool.engines.megatron.weights import TextShape, hf_names, is_row, partition_dim, share_of
from vtool.models.adapters import adapter_names


def add_adapters(
    gpt: Any,
    whole: Mapping[str, Tensor],
    shape: TextShape,
    scale: float,
    tensor_rank: int,
    in_model: Callable[[str], str],
) -> None:
    """Put adapters beside the linears of a `GPTModel`, in place. Before megatron-core's DDP wraps
    it.

    Args:
        whole: the adapters' tensors among others, by peft's names.
        scale: what B · A is multiplied by.
        tensor_rank: this rank's place in its TP group.
        in_model: a parameter's name in the whole model, of that in `gpt`, which has the layers of
            one pipeline stage.
    """
    for name, linear in dict(gpt.named_modules()).items():
        weights = (
            hf_names(in_model(f"{name}.weight"))
            if name.rpartition(".")[2].startswith("linear_")
            else ()
        )
        parts = {
            weight.split(".")[-2]: whole[adapter_names(weight)[0]].shape[0]
            for weight in weights
            if adapter_names(weight)[0] in whole
        }
        if parts:
            order = [weight.split(".")[-2] for weight in weights]
            linear.adapters = Adapters(
                linear, parts, order, shape, scale, row=is_row(f"{name}.weight")
            )
            linear.register_forward_hook(_add)
            _fill(linear.adapters, in_model(f"{name}.adapters"), whole, shape, tensor_rank)


def _fill(
    adapters: "Adapters",
    prefix: str,
    whole: Mapping[str, Tensor],
    shape: TextShape,
    tensor_rank: int,
) -> None:
    with torch.no_grad():
        for name, parameter in adapters.named_parameters():
            dim = partition_dim(f"{prefix}.{name}")
            parameter.copy_(
                share_of(f"{prefix}.{name}", whole, shape, adapters.tensor_size, tensor_rank)
            )
            # What megatron-core's gradient norm, and its sum over sequence parallel ranks, go by.
            for attribute, value in (
                ("tensor_model_parallel", dim is not None),
                ("partition_dim", -1 if dim is None else dim),
                ("partition_stride", 1),
                ("sequence_parallel", adapters.sequence_parallel and dim is None),
            ):
                setattr(parameter, attribute, value)


def _add(linear: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    result, bias = output
    return result + linear.adapters(inputs[0]), bias


class Adapters(nn.Module):
    """The adapters of one linear:

    from what goes into it to what is added to its output, as this rank has both.
    """

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
        """`ranks`:

        r of each part that has an adapter. `order`: all parts that the linear is made of, by
        transformers' names.
        """
        super().__init__()
        config = linear.config
        self.order, self.shape, self.scale, self.row = order, shape, scale, row
        self.tensor_size: int = config.tensor_model_parallel_size
        self.sequence_parallel: bool = config.sequence_parallel
        rows, columns = linear.weight.shape
        for part, rank in ranks.items():
            self.add_module(part, _Pair(rank, columns, self._rows(part, rows), linear.weight))

    def _rows(self, part: str, rows: int) -> int:
        """Of a part's weight, on this rank."""
        if len(self.order) < 3:
            return rows // len(self.order)
        heads = self.shape.heads if part == "q_proj" else self.shape.groups
        return heads * self.shape.head_dim // self.tensor_size

    def forward(self, x: Tensor) -> Tensor:
        parts: dict[str, Any] = dict(self.named_children())
        small = self._between(torch.cat([pair(x) for pair in parts.values()], -1))
        split = dict(
            zip(
                parts,
                torch.split(small, [pair.A.shape[0] for pair in parts.values()], -1),
                strict=True,
            )
        )
        added = {part: split[part] @ pair.B.t() for part, pair in parts.items()}
        some: Tensor = next(iter(added.values()))
        if len(self.order) == 1:
            return some * self.scale
        # gate and up have as many
        rows = {part: self._rows(part, 2 * some.shape[-1]) for part in self.order}
        whole = [
            added[part] if part in added else some.new_zeros(*some.shape[:-1], rows[part])
            for part in self.order
        ]
        # to megatron-core's order: of each query group its q heads, k and v
        if len(self.order) == 3:
            whole = [
                part.unflatten(-1, (self.shape.groups // self.tensor_size, -1)) for part in whole
            ]
            return torch.cat(whole, -1).flatten(-2) * self.scale
        return torch.cat(whole, -1) * self.scale

    def _between(self, small: Tensor) -> Tensor:
        """What the ranks do between A and B; [S or its share, B, r] both ways."""
        from megatron.core import tensor_parallel

        if self.row:
            if self.sequence_parallel:
                return tensor_parallel.reduce_scatter_to_sequence_parallel_region(small)  # type: ignore[no-any-return]
            return tensor_parallel.reduce_from_tensor_model_parallel_region(small)  # type: ignore[no-any-return]
        if self.sequence_parallel:
            return tensor_parallel.gather_from_sequence_parallel_region(small)  # type: ignore[no-any-return]
        return tensor_parallel.copy_to_tensor_model_parallel_region(small)  # type: ignore[no-any-return]


class _Pair(nn.Module):
    """A and B.

    Called, it gives A · x: a parallel gather of weights that overlaps with the forward pass waits
    in front of such a call.
    """

    def __init__(self, rank: int, columns: int, rows: int, like: Tensor) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.empty(rank, columns, dtype=like.dtype, device=like.device))
        self.B = nn.Parameter(torch.empty(rows, rank, dtype=like.dtype, device=like.device))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.A.t()
