"""The ranks of a run, and all communication between them outside the engines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from socket import gethostname
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from vtool.config.schema import Run
from vtool.devices import Placement, place
from vtool.diagnostics import Diagnostic, Findings
from vtool.launchers import joined_launch

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
        """Return the ranks that a launcher has started; one rank without a launcher.

        Where it has not said how many are on this machine, `meet` counts them.

        Raises:
            Findings: those of `joined_launch`, fatal.
        """
        launch = joined_launch()
        if launch is None:
            return Ranks()
        local_rank = launch.local_rank or 0
        return Ranks(launch.rank, launch.world, local_rank, launch.local_world or local_rank + 1)

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


class NotConnectedError(RuntimeError):
    """The ranks could not connect to each other: a network that is not there, or a rank gone."""


def meet(run: Run, ranks: Ranks) -> tuple[Ranks, bool]:
    """Choose this rank's device, and begin the process group where there are several ranks.

    Returns:
        The ranks with their device, and whether the group was begun here: one that is there
        already, as in a worker of Ray Train, is used, and left to whoever began it.

    Raises:
        Findings: `device-missing`; `launch-conflict`, where a group is there that cannot be used.
    """
    placement = place(run, ranks.local_rank, ranks.local_world)
    launch = joined_launch()
    counted = ranks.world == 1 or launch is None or launch.local_world is not None
    if counted:
        _use(placement)
    begun = ranks.world > 1 and not dist.is_initialized()
    if begun:
        try:
            dist.init_process_group(
                placement.backend,
                rank=ranks.rank,
                world_size=ranks.world,
                timeout=COLLECTIVE_TIMEOUT,
            )
        except RuntimeError as error:  # gloo says it in many ways
            raise NotConnectedError(str(error)) from error
    elif ranks.world > 1:
        _check_group(placement, ranks)
    if not counted:
        mine = launch is not None and launch.local_rank
        hosts = ranks.all_gather_objects((gethostname(), mine))
        here = [rank for rank, (host, _) in enumerate(hosts) if host == gethostname()]
        local_rank = here.index(ranks.rank) if mine is None else ranks.local_rank
        ranks = replace(ranks, local_rank=local_rank, local_world=len(here))
        placement = place(run, ranks.local_rank, ranks.local_world)
        _use(placement)
    return replace(ranks, device=placement.device), begun


def _use(placement: Placement) -> None:
    torch.set_num_threads(placement.threads)
    if placement.device.type != "cpu":
        torch.get_device_module(placement.device).set_device(placement.device)


def _check_group(placement: Placement, ranks: Ranks) -> None:
    """Check that a process group which is there already is of these ranks, and has the backends."""
    there = dist.get_backend_config().split(",")
    wanted = placement.backend.split(",") if ":" in placement.backend else ["cpu:gloo"]
    seen = (dist.get_rank(), dist.get_world_size())
    if seen == (ranks.rank, ranks.world) and set(wanted) <= set(there):
        return
    message = (
        f"a process group is there already, of {seen[1]} ranks with {','.join(there)}; rank"
        f" {ranks.rank} of {ranks.world} needs one with {','.join(wanted)}"
    )
    help = "call vtool before torch.distributed.init_process_group, or begin it with these backends"
    raise Findings(Diagnostic("launch-conflict", message, help), fatal=True)
