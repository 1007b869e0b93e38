"""Sharded data parallel training by torch's FSDP2 (`torch.distributed.fsdp.fully_shard`; PyTorch
FSDP, arXiv 2304.11277).

Each rank keeps its share of every parameter, its gradient and its optimizer state, in float32
(float64 under model.dtype=float64). A block's weights are gathered for its forward and its backward
pass, in the compute dtype, and freed after it. Its gradient is summed over ranks in the weights'
own dtype after each micro-batch, and each rank keeps its share of the sum: a whole gradient is
never anywhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

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
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import get_total_norm

from vtool.config.readback import Observed
from vtool.config.schema import Fsdp2 as Fsdp2Settings
from vtool.engines import common
from vtool.engines.contract import Group
from vtool.engines.ranks import Ranks
from vtool.engines.spans import Span, null_span
from vtool.models import read_back as models
from vtool.models.adapters import Adapter

B = TypeVar("B")


class Fsdp2:
    """See `vtool.engines.contract.Engine`."""

    def __init__(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        settings: Fsdp2Settings,
        ranks: Ranks,
        compute_dtype: torch.dtype,
        build_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    ) -> None:
        """`blocks`:

        the parts of `module` whose weights are gathered and freed together, inner ones before those
        around them.
        """
        self.ranks = self.data = ranks
        self.size, self.trained = common.sizes(module)
        mesh = _mesh(ranks)
        weights = next(module.parameters()).dtype
        precision = MixedPrecisionPolicy(
            param_dtype=None if compute_dtype == weights else compute_dtype,
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
        """Each part that is gathered together, and whether it is freed after its forward pass."""
        # What is left for the module itself, the head above all, is needed again at once: it is
        # never freed in between.
        for part, freed in [
            *((block, settings.reshard_after_forward) for block in blocks),
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
        self.module = module
        self.parameters = common.trainable(module)
        self.optimizer = build_optimizer(module)

    def forward_backward(
        self,
        batches: Sequence[B],
        nll: Callable[[Callable[..., Any], B], Tensor],
        supervised: int,
        *,
        every_parameter: bool,
        span: Span = null_span,
    ) -> list[float]:
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
        return torch.stack(sums).tolist()

    def clip_gradient(self, largest: float | None) -> float:
        mine = get_total_norm(
            [_share(parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        )
        squares = sum(norm**2 for (norm,) in self.ranks.all_gather([mine.item()]))
        return common.clip(
            self.parameters,
            torch.tensor(squares**0.5, dtype=mine.dtype, device=mine.device),
            largest,
        )

    def gradients(self) -> dict[str, Tensor]:
        return common.gradients(self.module, self._gather)

    def optimizer_step(self, lr: float) -> None:
        common.update(self.optimizer, lr)

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # weights are gathered in the compute dtype

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        # Ranks generate answers of different lengths, so that no forward pass may wait for another
        # rank: all weights are gathered before.
        with common.evaluation_mode(self.module):
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
                self.parts[-1][0].reset_iter_state()

    def iter_hf_weights(self, adapter: Adapter = "merged") -> Iterator[tuple[str, Tensor]]:
        return common.iter_hf_weights(self.module, adapter, self._gather)

    def model_state(self) -> dict[str, Tensor]:
        return self._kept(self.iter_hf_weights(common.kept_by_checkpoints(self.module)))

    def optimizer_state(self) -> dict[str, Tensor]:
        state = common.optimizer_tensors(self.module, self.optimizer)
        return self._kept((name, self._gather(tensor)) for name, tensor in state.items())

    def load_state(self, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        common.load_tensors(self.module, self.optimizer, model, optimizer, self._part)

    def observe(self, part: Callable[[str], str]) -> Iterator[Observed]:
        yield from observe_fsdp2(self.module)
        yield from models.read_back(self.module)
        yield from models.read_adapters(self.module, part)

    def optimizer_groups(self) -> Iterator[Group]:
        return common.optimizer_groups(self.module, self.optimizer)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return common.named_parameters(self.module)

    def _gather(self, tensor: Tensor) -> Tensor:
        """All of a tensor of which each rank has its share."""
        there = tensor.to(self.ranks.device)
        return there.full_tensor() if isinstance(there, DTensor) else there

    def _kept(self, tensors: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """On rank 0 they come together in the CPU's memory, one after the other;

        the other ranks keep none.
        """
        return {name: tensor.cpu() for name, tensor in tensors if self.ranks.rank == 0}

    def _part(self, parameter: Tensor, whole: Tensor) -> Tensor:
        """This rank's share of a tensor that every rank has whole."""
        if not isinstance(parameter, DTensor):
            return whole
        # Without a source rank nothing is sent: each rank cuts its own share.
        return distribute_tensor(
            whole.to(self.ranks.device),
            parameter.device_mesh,
            parameter.placements,
            src_data_rank=None,
        )


def observe_fsdp2(module: nn.Module) -> Iterator[Observed]:
    """What FSDP2 has of the settings of engine=fsdp2, and of `model.dtype`, in each group of
    parameters that it gathers together.

    The module's own group, with what no block has taken, is never freed after the forward pass,
    whatever is asked.
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
        for group in part._get_fsdp_state()._fsdp_param_groups:
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
            yield Observed("model.dtype", models.dtype_name(computed), where)
            yield Observed(
                "model.dtype.reduction", models.dtype_name(policy.reduce_dtype or computed), where
            )


def _mesh(ranks: Ranks) -> DeviceMesh:
    if not dist.is_initialized():
        # torch shards over a process group even where there is one process: this one has no peers,
        # and lives in memory.
        assert ranks.world == 1, "launch sets up the group of several ranks"
        dist.init_process_group(store=HashStore(), rank=0, world_size=1)
    return init_device_mesh(ranks.device.type, (ranks.world,))


def _share(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
