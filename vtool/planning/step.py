"""One rank's memory in a step of training, by torch's trackers: every shape, and no values.

The engine, the loss and the model are a run's own. Nothing is allocated for weights or activations,
and no other rank is there: torch's process group `fake` answers for them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from vtool.config.schema import Ddp, Fsdp2, Run
from vtool.data.collate import Batch
from vtool.data.loss import summed_nll
from vtool.data.packing import with_positions
from vtool.engines import common
from vtool.engines.contract import Engine
from vtool.engines.ranks import Ranks
from vtool.families.family import load_family
from vtool.models.adapters import saved_name
from vtool.models.on_meta import not_a_number
from vtool.models.tower_index import TowerIndex, TowerIndexer, tower_indexer
from vtool.planning.micro_batch import Shape, build_batch, passes_of
from vtool.planning.shapes import FirstShares, ShapesMode, without_tracebacks
from vtool.planning.windows import attend_by_size
from vtool.profiling.flops import attention_flops
from vtool.training.eight_bit import AdamW8bit, bytes_of_means
from vtool.training.model_and_engine import build_engine, prepare_model

# What torch's trackers call each kind of memory.
_KINDS = {
    "SHARDED_PARAM": "weights",
    "PARAM": "weights",
    "BUFFER": "weights",
    "SHARDED_GRAD": "gradients",
    "GRAD": "gradients",
    "UNSHARDED_PARAM": "gathered",
    "UNSHARDED_GRAD": "gathered",
    "ALL_GATHER": "gathered",
    "REDUCE_SCATTER": "gathered",
}
_NO_HOOK = SimpleNamespace(remove=lambda: None)
MEMORY_KINDS = ("weights", "gradients", "optimizer", "gathered", "activations")


@dataclass(frozen=True, slots=True)
class StepNeeds:
    """The needs of one rank in a step. All sizes are bytes."""

    memory: Mapping[str, int]
    """At the peak, by `MEMORY_KINDS`."""
    sent: int
    """Over the wire, of this rank, in a step: what its collectives move by their rings."""
    flops: int
    """The FLOPs of a micro-batch, recomputed ones included."""
    state: int
    """The bytes of the optimizer's state of all ranks, as a checkpoint has it."""

    @property
    def peak(self) -> int:
        """The whole of the memory."""
        return sum(self.memory.values())


def measure_step(run: Run, module: nn.Module, world: int, shape: Shape) -> StepNeeds:
    """Compute a rank's step.

    Args:
        module: its parameters on the meta device, before `prepare_model`. It is used up.
        world: the ranks.
    """
    assert isinstance(run.engine, Ddp | Fsdp2), "others are refused before"
    passes = passes_of(run, world, shape)
    sharded = isinstance(run.engine, Fsdp2)
    family = load_family(run.model.family)
    indexer = tower_indexer(family, module)
    prepare_model(run, module, not_a_number(module))
    attend_by_size(module)
    weights = _on_meta(module)
    fake = _other_ranks_are_fake(world if sharded else 1)
    with fake as ranks, ShapesMode(), without_tracebacks():
        # A conversion would swap each fake parameter for another, which torch refuses of some.
        module.to = lambda *_, **__: module  # type: ignore[method-assign]
        with FirstShares():
            engine: Any = build_engine(run, module, ranks, weights)
        batch = build_batch(module, family, shape)
        with _disable_current_modes():
            batch = replace(batch, **_places(batch, module, shape, indexer))
        whole = not family.computes_as_known(module)
        tracker: Any
        if sharded:
            tracker = _FsdpTracker(module, engine.optimizer)
        else:
            tracker = _Tracker()
            tracker.track_external(module, engine.optimizer)
        counting = _Counting(world)
        # Later micro-batches find gradients that the first one has left.
        with counting, tracker:
            # its hooks are refused by parameters that get no gradient
            for parameter in module.parameters():
                if not parameter.requires_grad and not sharded:
                    tracker._param_to_grad_hook_handles[parameter] = (_NO_HOOK, _NO_HOOK)
            for number in range(min(2, passes)):
                counting.on = number == 0
                tracker.reset_mod_stats()
                _run_pass(engine, batch, whole=whole)
        peak = tracker.get_tracker_snapshot("peak")
        own = [parameter for parameter in module.parameters() if parameter.requires_grad]
        local = [one.to_local() if isinstance(one, DTensor) else one for one in own]
    found = Counter(dict.fromkeys(MEMORY_KINDS, 0))
    for by_kind in peak.values():
        for kind, size in by_kind.items():
            if (name := str(kind).rpartition(".")[2]) != "Total":
                found[_KINDS.get(name, "activations")] += size
    trained = sum(one.numel() * one.element_size() for one in local)
    found["optimizer"] = _state_of(engine.optimizer, own, local)
    sent = counting.sent * passes
    if isinstance(run.engine, Ddp) and world > 1:
        # DistributedDataParallel is built over a real model only: its buckets are gradients again.
        found["gradients"] += 0 if run.engine.gradient_as_bucket_view else trained
        sent = round(2 * (world - 1) / world * trained)
    return StepNeeds(dict(found), sent, counting.flops, _state_of(engine.optimizer, own, own))


def _on_meta(module: nn.Module) -> dict[str, Tensor]:
    """Move what has been added to a model to the meta device, and return stand-ins for all of it.

    They go by names in files.
    """
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and not parameter.is_meta:
                there = parameter.detach().to("meta")
                part._parameters[name] = nn.Parameter(there, parameter.requires_grad)
    return {saved_name(name): tensor for name, tensor in not_a_number(module).items()}


def _places(
    batch: Batch, module: nn.Module, shape: Shape, indexer: TowerIndexer | None
) -> dict[str, Any]:
    """Return the inputs and towers of a batch, as a run has them from its loader.

    Positions and a tower's index are loops over images, of many small operations: under torch's
    trackers, they took minutes for some thousands. Rows and images are alike, so they are made of
    one row and of one image.
    """
    rows = {name: one for name, one in batch.inputs.items() if name != "pixel_values"}
    first = {name: one[: max(1, len(one) // shape.rows)] for name, one in rows.items()}
    towers: dict[str, TowerIndex] = {}
    if indexer is not None and shape.images:
        one = indexer.index(batch.inputs["image_grid_thw"][:1])
        towers["image_index"] = _repeated(one, shape.rows * shape.images)
    of_row = with_positions(replace(batch, inputs=first, towers=towers), module)
    found = of_row.inputs.get("position_ids")
    if found is None:
        return {"towers": towers}
    inputs = {**batch.inputs, "position_ids": found.repeat(1, shape.rows, 1)}
    if indexer is not None and towers and not indexer.family.reads_sizes_of_images:
        # frames of one image: features are cut at images, and put together again as they were
        grids = inputs["image_grid_thw"]
        inputs["image_grid_thw"] = torch.cat([grids[:, :1].sum(0, keepdim=True), grids[:1, 1:]], 1)
    return {"inputs": inputs, "towers": towers}


def _repeated(index: TowerIndex, count: int) -> TowerIndex:
    """Return the index of so many images that are alike."""
    found: TowerIndex | None = None
    while count:
        if count % 2:
            found = index if found is None else found.joined(index)
        count //= 2
        if count:
            index = index.joined(index)
    assert found is not None, "there is one"
    return found


def _run_pass(engine: Engine, batch: Any, *, whole: bool) -> None:
    """Run the forward and the backward pass of a micro-batch, as a run does.

    Args:
        whole: the loss is that of all logits at once.
    """
    with engine.autocast():
        nll = summed_nll(engine.module, batch, None if whole else engine.module)
    common.backward(nll * (1 / max(1, batch.supervised)))


class _PeakOfAll:
    """A tracker's peak of the whole model, without that of each module: a quarter of its time."""

    def _update_peak_stats(self: Any, peak_state: Any) -> None:
        for device, now in self._curr_mem_snap.items():
            if self._peak_mem.get(device, 0) < now["Total"]:
                self._peak_mem[device] = now["Total"]
                self._peak_mem_snap[device] = dict(now)


class _Tracker(_PeakOfAll, MemTracker):  # type: ignore[no-untyped-call]
    pass


class _FsdpTracker(_PeakOfAll, FSDPMemTracker):  # type: ignore[no-untyped-call]
    def _fsdp_param_group_post_backward(self, fsdp_mod: Any, orig: Any) -> Any:
        """Pass over what was never gathered: the tower, where there is no image."""
        tracked = super()._fsdp_param_group_post_backward(fsdp_mod, orig)

        def inner(*args: Any, **more: Any) -> None:
            group = fsdp_mod._get_fsdp_state()._fsdp_param_group
            ever = group is None or all(
                hasattr(one, "_unsharded_param") for one in group.fsdp_params
            )
            (tracked if ever else orig)(*args, **more)

        return inner


class _Counting(TorchDispatchMode):
    """Counts the bytes of collectives, and the FLOPs."""

    def __init__(self, world: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent = self.flops = 0
        self.on = True
        self._part = (world - 1) / world

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.on:
            return out
        name = func.name()
        if "_allgather_base_" in name:
            self.sent += round(self._part * args[0].nbytes)
        elif "_reduce_scatter_base_" in name:
            self.sent += round(self._part * args[1].nbytes)
        elif "c10d::allreduce_" in name:
            self.sent += round(2 * self._part * sum(one.nbytes for one in tree_leaves(args[0])))
        elif "scaled_dot_product" in name:
            shapes = [one.shape for one in args[:4] if isinstance(one, Tensor)]
            self.flops += attention_flops(shapes, backward=name.endswith("backward"))
        elif (count := flop_registry.get(func.overloadpacket)) is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        return out


def _state_of(
    optimizer: torch.optim.Optimizer, whole: Sequence[Tensor], held: Sequence[Tensor]
) -> int:
    """Return the bytes that an optimizer keeps for parameters, of what is held of each."""
    if isinstance(optimizer, AdamW8bit):
        return sum(
            bytes_of_means(one.shape, mine.numel()) for one, mine in zip(whole, held, strict=True)
        )
    trained = sum(one.numel() * one.element_size() for one in held)
    return round(trained * _state_of_a_byte(optimizer))


def _state_of_a_byte(optimizer: torch.optim.Optimizer) -> float:
    """Return the bytes that an optimizer keeps for each byte of a parameter."""
    one = nn.Parameter(torch.ones(8, 8))
    defaults = {name: value for name, value in optimizer.defaults.items() if name != "params"}
    group = {"params": [one], **defaults, "lr": 1e-3}
    build: Any = type(optimizer)
    copy = build([group], fused=True) if defaults.get("fused") else build([group])
    one.grad = torch.ones_like(one)
    copy.step()
    kept = [each for each in copy.state[one].values() if isinstance(each, Tensor)]
    return sum(each.nbytes for each in kept if prod(each.shape) == 64) / one.nbytes


@contextmanager
def _other_ranks_are_fake(world: int) -> Iterator[Ranks]:
    """Yield the first of so many ranks, whose collectives return at once."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    assert not dist.is_initialized(), "a plan is made by a process of its own"
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        yield Ranks(0, world, 0, world)
    finally:
        dist.destroy_process_group()
