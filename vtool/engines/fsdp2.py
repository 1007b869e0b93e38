"""Sharded data parallel training by torch's FSDP2.

`torch.distributed.fsdp.fully_shard`; PyTorch FSDP, arXiv 2304.11277.

Each rank keeps its share of every parameter, its gradient and its optimizer state, in float32
(float64 under model.dtype=float64). A block's weights are gathered for its forward and its backward
pass, in the compute dtype, and freed after it. Its gradient is summed over ranks in the weights'
own dtype after each micro-batch, and each rank keeps its share of the sum: a whole gradient is
never anywhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.utils import get_total_norm
from torch.utils import swap_tensors

from vtool.config.readback import Observed
from vtool.engines import common
from vtool.engines.contract import B, EngineInputs
from vtool.engines.ranks import Ranks
from vtool.engines.spans import Span, null_span
from vtool.models import observe_model
from vtool.releases import forget_forward_order, fsdp_groups


class Fsdp2Engine(common.TorchEngine):
    """See `vtool.engines.contract.Engine`."""

    def __init__(self, inputs: EngineInputs) -> None:
        """Shard the model, in place."""
        module, settings, ranks = inputs.module, inputs.settings, inputs.ranks
        super().__init__(module, ranks)
        mesh = _mesh(ranks)
        # of those that are trained: what is frozen may be narrower
        weights = next(one.dtype for one in module.parameters() if one.requires_grad)
        precision = MixedPrecisionPolicy(
            param_dtype=None if inputs.compute_dtype == weights else inputs.compute_dtype,
            reduce_dtype=weights,
            # Rotary tables go into the blocks in float32, and are applied in it. The model casts
            # what it wants cast.
            cast_forward_inputs=False,
        )
        # On a CPU the shares are there already.
        offload = (
            CPUOffloadPolicy()
            if settings.cpu_offload and ranks.device.type != "cpu"
            else OffloadPolicy()
        )
        self.parts: list[tuple[FSDPModule, bool]] = []
        """Each module that is gathered together, and whether it is freed after its forward pass."""
        # What is left for the module itself, the head above all, is needed again at once: it is
        # never freed in between.
        for part, freed in [
            *((block, settings.reshard_after_forward) for block in inputs.blocks),
            (module, False),
        ]:
            sharded = fully_shard(
                part,
                mesh=mesh,
                reshard_after_forward=freed,
                mp_policy=precision,
                offload_policy=offload,
            )
            sharded.set_gradient_divide_factor(1.0)
            # gloo has no PREMUL_SUM, with which the factor would be applied
            sharded.set_force_sum_reduction_for_comms(True)
            self.parts.append((sharded, freed))
        self._read_shares(inputs.weights, on_cpu=isinstance(offload, CPUOffloadPolicy))
        self.parameters = common.trainable(module)
        self.optimizer = inputs.build_optimizer(module)

    def forward_backward(
        self,
        batches: Sequence[B],
        nll: Callable[[Callable[..., Any], B], Tensor],
        supervised: int,
        *,
        every_parameter: bool,
        span: Span = null_span,
    ) -> Tensor:
        # Each forward pass gathers from all ranks: one that has fewer micro-batches takes its last
        # one again, for a gradient of 0.
        passes = int(max(count for (count,) in self.ranks.all_gather([len(batches)])))
        sums = []
        for place in range(passes):
            own = place < len(batches)
            with span("forward"):
                loss = nll(self.module, batches[place] if own else batches[-1])
            with span("backward"):
                common.backward(loss * (1 / supervised if own else 0.0))
            if own:
                sums.append(loss.detach())
        if not loss.requires_grad:
            # Weights are freed at the end of a backward pass, and none came: what was gathered
            # would be read for the weights.
            self.parts[-1][0].reset_iter_state()
        return torch.stack(sums)

    def clip_gradient(self, largest: float | None) -> Tensor:
        mine = get_total_norm(
            [_local(parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        )
        norms = mine.double().repeat(self.ranks.world)
        if self.ranks.world > 1:
            dist.all_gather_into_tensor(norms, mine.double().reshape(1))
        # one after the other, so that all ranks round alike
        squares = reduce(torch.add, norms.square().unbind())
        return common.clip(self.parameters, squares.sqrt().to(mine.dtype), largest)

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # weights are gathered in the compute dtype

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        # Ranks generate answers of different lengths, so that no forward pass may wait for another
        # rank: all weights are gathered before.
        with common.evaluation_mode(self.module):
            # The first forward pass of all may be the tower's own, as where a run that took its
            # last step continues with the test split: FSDP2 would take the tower for the whole
            # model.
            self.parts[-1][0]._get_fsdp_state()._lazy_init()
            for part, _ in self.parts:
                part.unshard()
                part.set_reshard_after_forward(False, recurse=False)
            try:
                yield
            finally:
                for part, freed in self.parts:
                    part.reshard()
                    part.set_reshard_after_forward(freed, recurse=False)
                # The order of these forward passes, another on each rank, must not guide what the
                # next backward gathers ahead.
                forget_forward_order(self.parts[-1][0], (part for part, _ in self.parts))

    def observe(self, component: Callable[[str], str]) -> Iterator[Observed]:
        yield from observe_fsdp2(self.module)
        yield from observe_model.observe_layers(self.module)
        yield from observe_model.observe_adapters(self.module, component)

    def _read_shares(self, weights: Mapping[str, Tensor], *, on_cpu: bool) -> None:
        """Give parameters on the meta device their memory and values, this rank's share alone."""
        device = torch.device("cpu") if on_cpu else self.ranks.device
        common.load_buffers(self.module, weights)
        for name, parameter in self.named_parameters():
            if parameter.is_meta:
                own = torch.empty_like(parameter, device=device).detach()
                _local(own).copy_(weights[name][_place_of_share(parameter)])
                # the same object: FSDP2, and whatever is tied to it, keep using it
                swap_tensors(  # type: ignore[no-untyped-call]
                    parameter, nn.Parameter(own, parameter.requires_grad)
                )
        for part, _ in self.parts:
            for group in fsdp_groups(part):
                for one in group.fsdp_params:
                    one.reset_sharded_param()

    def _gather(self, tensor: Tensor, to: int | None) -> Tensor | None:
        there = tensor.to(self.ranks.device)
        if not isinstance(there, DTensor):
            return super()._gather(there, to)
        if to is None or self.ranks.world == 1:
            return there.full_tensor()
        return _gather_rows(there, to)

    def _share(self, parameter: Tensor, whole: Tensor) -> Tensor:
        if not isinstance(parameter, DTensor):
            return whole
        place = _place_of_share(parameter)
        alike = whole.shape == parameter.shape
        return DTensor.from_local(
            # cut before it is looked into: what is a file's is read there alone
            whole[place if alike else place[:1]].to(self.ranks.device),
            parameter.device_mesh,
            parameter.placements,
            shape=torch.Size(whole.shape),
            stride=parameter.stride() if alike else (whole.shape[1], 1),
        )


def observe_fsdp2(module: nn.Module) -> Iterator[Observed]:
    """Yield the settings of engine=fsdp2, and `model.dtype`, as FSDP2 has them.

    It has them in each group of parameters that it gathers together. The module's own group, of the
    parameters that are in no block, is never freed after the forward pass, whatever the settings
    say.
    """
    whole = [
        name for name, parameter in module.named_parameters() if not isinstance(parameter, DTensor)
    ]
    parts = [(name, part) for name, part in module.named_modules() if isinstance(part, FSDPModule)]
    where = (
        f"{type(module).__name__}, with {len(whole)} parameters that FSDP2 has not sharded,"
        if whole
        else type(module).__name__
    )
    yield Observed("engine.kind", "none" if whole or not parts else "fsdp2", where)
    if not any(name for name, _ in parts):
        yield Observed(
            "engine.reshard_after_forward",
            False,
            f"{type(module).__name__}, of which no block is sharded by itself,",
        )
    for name, part in parts:
        for group in fsdp_groups(part):
            where = f"FSDP's group of {name or 'the whole module'}"
            policy, own = group.mp_policy, group.fsdp_params[0].sharded_param.dtype
            if name:
                yield Observed(
                    "engine.reshard_after_forward", group.post_forward_mesh_info is not None, where
                )
            if group.device.type != "cpu":  # there the shares are in the CPU's memory in any case
                yield Observed(
                    "engine.cpu_offload", isinstance(group.offload_policy, CPUOffloadPolicy), where
                )
            computed = policy.param_dtype or own
            yield Observed("model.dtype", observe_model.dtype_name(computed), where)
            yield Observed(
                "model.dtype.reduction",
                observe_model.dtype_name(policy.reduce_dtype or computed),
                where,
            )


def _mesh(ranks: Ranks) -> DeviceMesh:
    if not dist.is_initialized():
        # torch shards over a process group even where there is one process: this one has no peers,
        # and lives in memory.
        assert ranks.world == 1, "launch sets up the group of several ranks"
        dist.init_process_group(store=HashStore(), rank=0, world_size=1)
    return init_device_mesh(ranks.device.type, (ranks.world,))


def _gather_rows(tensor: DTensor, to: int) -> Tensor | None:
    """Return the whole of a tensor on one rank; the others send their rows, and get None."""
    mesh, own = tensor.device_mesh, tensor.to_local()
    rows = -(-len(tensor) // mesh.size())
    if len(own) < rows:  # the last ranks have fewer, or none; what is gathered is of one shape
        own = torch.cat([own, own.new_zeros(rows - len(own), *own.shape[1:])])
    whole = own.new_empty(mesh.size() * rows, *own.shape[1:]) if mesh.get_rank() == to else None
    shares = None if whole is None else list(whole.chunk(mesh.size()))
    dist.gather(own.contiguous(), shares, group=mesh.get_group(), group_dst=to)
    return None if whole is None else whole[: len(tensor)]


def _place_of_share(parameter: Any) -> tuple[slice, ...]:
    """Return the place in a whole tensor of what this rank keeps of a parameter."""
    shape, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return tuple(slice(at, at + size) for at, size in zip(offset, shape, strict=True))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
