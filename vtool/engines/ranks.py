"""The ranks of a run, and all communication between them outside the engines."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from vtool.diagnostics import Findings

T = TypeVar("T")
CPU = torch.device("cpu")

# How long a rank waits for another. torch's own 10 minutes (NCCL; gloo: 30) end runs in which one
# writes its share of a checkpoint to a slow disk, or reads and digests all of it, or has the
# largest rows to audit. A rank that dies is noticed by torchrun and its closed connections, within
# seconds: what takes this long to be seen is one that hangs.
COLLECTIVE_TIMEOUT = timedelta(hours=2)


class SharedFindings(Findings):
    """Findings that every rank raises at once, so that rank 0 reports for all."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This rank and the ranks that it talks to.

    With a world of 1 nothing is communicated, and no process group is needed.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    device: torch.device = CPU
    group: dist.ProcessGroup | None = None
    """The ranks that this one talks to; None: all ranks of the run."""

    @staticmethod
    def from_environment() -> "Ranks":
        """Return the ranks that torchrun has started; one rank without torchrun."""
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        return Ranks(
            rank,
            world,
            int(os.environ.get("LOCAL_RANK", "0")),
            int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        )

    def all_gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return each rank's numbers, by rank, in float64: integers are exact below 2⁵³.

        All ranks give equally many. They go over gloo, whatever the device: over its own library,
        each rank would wait until its device has computed all that was queued before.
        """
        if self.world == 1:
            return [list(values)]
        mine = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(gathered, mine, group=self.group)
        return [vector.tolist() for vector in gathered]

    def all_gather_objects(self, value: Any) -> list[Any]:
        """Return each rank's object, by rank."""
        if self.world == 1:
            return [value]
        gathered: list[Any] = [None] * self.world
        dist.all_gather_object(gathered, value, group=self.group)
        return gathered

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 alone, and return its result on every rank.

        Raises:
            SharedFindings: what `work` raised as `Findings`, on every rank.
        """
        if self.world == 1:
            return work()
        outcome: list[Any] = [None]
        if self.rank == 0:
            try:
                outcome = [work()]
            except Findings as findings:
                outcome = [SharedFindings(findings.diagnostics, fatal=findings.fatal)]
                outcome[0].__cause__ = findings.__cause__
        outcome = self.from_rank_zero(outcome)
        if isinstance(outcome[0], Findings):
            raise outcome[0]
        result: T = outcome[0]
        return result

    def from_rank_zero(self, value: Any) -> Any:
        """Return rank 0's object on every rank; what the others give is not looked at."""
        if self.world == 1:
            return value
        sent = [value]
        dist.broadcast_object_list(sent, group_src=0, group=self.group)
        return sent[0]

    def with_own_group(self) -> "Ranks":
        """Return the same ranks over a group of their own, for a thread that talks at any time.

        All ranks of the run call it at the same time.
        """
        if self.world == 1:
            return self
        return replace(
            self, device=CPU, group=dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        )

    def barrier(self) -> None:
        """Wait until every rank has called it."""
        if self.world > 1:
            dist.barrier(self.group)
