"""Megatron-core's process groups, and this rank's place in each."""

import gc
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from vtool.config.schema.megatron import Parallel
from vtool.engines.megatron.shim import seed_megatron
from vtool.engines.ranks import Ranks


class GroupRanks(NamedTuple):
    """A rank's place in each group of its own. No two ranks of the run have the same."""

    tensor: int
    copies: int
    stage: int


@dataclass(frozen=True, slots=True)
class Groups:
    """The process groups that weights and rows are spread over."""

    tensor: Any
    """The ranks over which matrices are spread; they compute the same rows."""
    tensor_size: int
    tensor_rank: int
    data: Ranks
    """This rank among those that compute other rows, with the same weights."""
    stages: Ranks
    """This rank among the stages of its pipeline, which have other layers and compute the same
    rows.
    """
    model: Any
    """The ranks that have the whole model together: all tensor parallel ranks of all stages."""
    copies: Ranks
    """This rank among those that have the same weights, and sum their gradients: `data` and its
    context parallel ranks.
    """
    everyone: Any
    """The ranks that share a distributed optimizer: `model`, with the data parallel ones."""
    rank: int
    """This rank among all of the run."""
    places: tuple[GroupRanks, ...]
    """The place of each rank of the run."""

    @property
    def place(self) -> GroupRanks:
        """The place of this rank."""
        return GroupRanks(self.tensor_rank, self.copies.rank, self.stages.rank)

    def any_tensor_rank(self, condition: bool) -> bool:
        """Return true where any tensor parallel rank says so."""
        if self.tensor_size == 1:
            return condition
        flag = torch.tensor([condition], dtype=torch.int32, device=self.data.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.tensor)
        return bool(flag.item())

    def gather_tensor_shares(self, share: Any) -> list[Any]:
        """Return each tensor parallel rank's tensor, in order; all are of one shape."""
        if self.tensor_size == 1:
            return [share]
        shares = [torch.empty_like(share) for _ in range(self.tensor_size)]
        dist.all_gather(shares, share.contiguous(), group=self.tensor)
        return shares


def start_groups(parallel: Parallel, ranks: Ranks) -> Groups:
    """Set up megatron-core's groups, which are global to a process: those of an earlier engine end.

    A rank by itself gets a process group of its own, without which megatron-core builds nothing.
    """
    from megatron.core import parallel_state

    if not dist.is_initialized():
        assert ranks.world == 1, "more ranks than one have been brought together before"
        backend = "gloo" if ranks.device.type == "cpu" else "nccl"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    if parallel_state.model_parallel_is_initialized():
        _end_groups()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        context_parallel_size=parallel.context,
        create_gloo_process_groups=False,
    )
    seed_megatron(0, ranks.device)  # nothing draws from it: dropout is 0

    def among(group: Any) -> Ranks:
        return Ranks(
            dist.get_rank(group),
            dist.get_world_size(group),
            ranks.local_rank,
            ranks.local_world,
            ranks.device,
            group,
        )

    groups = Groups(
        parallel_state.get_tensor_model_parallel_group(),
        parallel.tensor,
        parallel_state.get_tensor_model_parallel_rank(),
        among(parallel_state.get_data_parallel_group()),
        among(parallel_state.get_pipeline_model_parallel_group()),
        parallel_state.get_model_parallel_group(),
        among(parallel_state.get_data_parallel_group(with_context_parallel=True)),
        parallel_state.get_intra_distributed_optimizer_instance_group(),
        ranks.rank,
        (),
    )
    # NCCL wants all ranks in the first thing that a group does, and pairs of them talk later.
    dist.all_reduce(torch.zeros(1, device=ranks.device))
    return replace(groups, places=tuple(ranks.all_gather_objects(groups.place)))


def _end_groups() -> None:
    """End megatron-core's groups.

    It forgets them itself, but each keeps its threads: hundreds of them after some engines.
    """
    from megatron.core import parallel_state

    groups = [
        group for group in parallel_state._global_process_group_list or () if group is not None
    ]
    parallel_state.destroy_model_parallel()
    dist.barrier()  # nobody is still in the middle of something
    for group in groups:
        dist.destroy_process_group(group)
    del groups
    # threads end with the last that holds their group: an engine, which is held by what it holds
    gc.collect()
