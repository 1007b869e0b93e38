"""The places where each engine keeps a gradient between a backward pass and the optimizer's step.

Between two passes, and at the step, a gradient need not be in `.grad`. `KEEPERS` is the table of
places, one line for each engine; docs/watch.md has it in words, with how each line was tested. What
is looked for are objects of the engine itself: that `.grad` is empty says nothing of who has it.
Nothing here is a collective: each process looks at its own part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .megatron import is_owned, is_shared_out
from .model import FoundModel, is_view_of_fsdp1, local_shard

MOST_PLACES = 64
"""Parameters whose places are looked at between passes, evenly taken."""


def gradient_of(parameter: Any) -> Any:
    """Return the gradient that the optimizer is to step with, where the parameter leads to it.

    Megatron-core adds gradients up in `main_grad`. At the step an optimizer with a whole copy of a
    16-bit parameter has another in the copy's `.grad`, which is the one that is clipped.
    """
    copy = getattr(parameter, "main_param", None)
    given = copy.grad if isinstance(copy, Tensor) and copy.is_leaf else None
    if given is not None and given.shape == parameter.shape:
        return given
    gradient = parameter.grad if parameter.is_leaf else None  # torch warns of others
    return gradient if gradient is not None else getattr(parameter, "main_grad", None)


@dataclass(frozen=True)
class Keeper:
    """A line of the table: an engine, and its places for one parameter's gradient."""

    engine: str
    of: Callable[[Any, Any], Iterator[Any]]
    """Yields what is there (tensors or None) for a parameter and FSDP2's record of it."""


def _of_parameter(parameter: Any, record: Any) -> Iterator[Any]:
    """Yield the gradient of torch, DDP and ZeroRedundancyOptimizer: buckets are written back."""
    yield parameter.grad if parameter.is_leaf else None


def _of_fsdp2(parameter: Any, record: Any) -> Iterator[Any]:
    """Yield the gradients of FSDP2: reduced, or waiting where synchronization is off."""
    if record is not None:
        yield record.sharded.grad
        yield from record.waiting()


def _of_fsdp1(parameter: Any, record: Any) -> Iterator[Any]:
    """Yield the shards that FSDP1's flat parameter puts aside in a backward pass."""
    if hasattr(parameter, "_local_shard"):
        yield getattr(parameter, "_saved_grad_shard", None)
        yield getattr(parameter, "_cpu_grad", None)


def _of_megatron(parameter: Any, record: Any) -> Iterator[Any]:
    """Yield Megatron-core's buffer, and what its optimizer's copy or share of a parameter has."""
    yield getattr(parameter, "main_grad", None)
    copy = getattr(parameter, "main_param", None)
    for one in (parameter, copy):
        yield getattr(one, "decoupled_grad", None)
    if isinstance(copy, Tensor) and copy.is_leaf:
        yield copy.grad


def _of_deepspeed(parameter: Any, record: Any) -> Iterator[Any]:
    """Yield this process's part of what ZeRO, or the 16-bit optimizer, has added up."""
    yield getattr(parameter, "_hp_grad", None)
    yield getattr(parameter, "grad_accum", None)
    mapping = getattr(parameter, "_hp_mapping", None)
    if mapping is not None:
        place = getattr(parameter, "_index_in_param_group", None)
        for kept in (mapping.gradient_dict, mapping.offload_gradient_dict):
            group = (kept or {}).get(mapping.param_group_index)
            if group is not None and place is not None and place < len(group):
                yield group[place]
        zero, group = getattr(parameter, "_zero_optimizer", None), mapping.param_group_index
        kept = getattr(zero, "all_grad_tensors", {}).get(group)
        own = getattr(zero, "params_in_partition", {group: ()})[group]
        yield from (each for one, each in zip(own, kept or ()) if one is parameter)
    stage3 = getattr(parameter, "_z3_optimizer", None)
    # its buffer stays after the step; what the step is to have is not_null until then
    if stage3 is not None and any(stage3.averaged_gradients.values()):
        name = "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition"
        yield getattr(stage3, name, {}).get(parameter.ds_id)


KEEPERS = (
    Keeper("torch", _of_parameter),
    Keeper("FSDP2", _of_fsdp2),
    Keeper("FSDP1", _of_fsdp1),
    Keeper("Megatron-core", _of_megatron),
    Keeper("DeepSpeed", _of_deepspeed),
)


@dataclass(frozen=True)
class Fsdp2Record:
    """FSDP2's own record of a parameter, and of the group that it is reduced with."""

    parameter: Any
    group: Any

    @property
    def sharded(self) -> Any:
        """The parameter that the optimizer has."""
        return self.parameter.sharded_param

    def waiting(self) -> Iterator[Any]:
        """Yield gradients that have not been reduced: the optimizer will not see them."""
        yield getattr(self.parameter, "unsharded_accumulated_grad", None)
        whole = getattr(self.parameter, "_unsharded_param", None)
        yield whole.grad if whole is not None else None
        # of several replicas: reduced within each, not yet over them
        yield getattr(self.group, "_partial_reduce_output", None)


def fsdp2_records(model: Any) -> dict[int, Fsdp2Record]:
    """Return FSDP2's records, by `id` of the sharded parameter and of the whole one."""
    found: dict[int, Fsdp2Record] = {}
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", None)
        if not callable(state):
            continue
        state = state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            for one in getattr(group, "fsdp_params", ()):
                record = Fsdp2Record(one, group)
                found[id(one.sharded_param)] = record
                if hasattr(one, "_unsharded_param"):
                    found[id(one._unsharded_param)] = record
    return found


def _is_nonzero(gradient: Any) -> bool:
    if not isinstance(gradient, Tensor) or gradient.is_sparse:
        return False
    own = local_shard(gradient)
    if not own.numel() or own.untyped_storage().size() == 0:  # a buffer freed between steps
        return False
    return bool((own != 0).any())


class KeptGradients:
    """The gradients of one model, wherever its engine has them."""

    def __init__(self, found: FoundModel) -> None:
        self.found = found
        self._witness: Any = None

    def forget(self) -> None:
        """Forget the gradient that passes of this step have left: a step begins."""
        self._witness = None

    def _some(self, most: int) -> list[tuple[str, Any, Any]]:
        """Return names, trained parameters and FSDP2's records of them, evenly taken."""
        named = [(n, p) for n, p in self.found.model.named_parameters() if p.requires_grad]
        records = fsdp2_records(self.found.model)
        some = named[:: max(1, len(named) // most)]
        return [(n, p, records.get(id(p))) for n, p in some]

    @staticmethod
    def _has(parameter: Any, record: Any) -> bool:
        places = (each for keeper in KEEPERS for each in keeper.of(parameter, record))
        return any(_is_nonzero(each) for each in places)

    def nonzero(self, most: int = MOST_PLACES) -> list[str]:
        """Return names of trained parameters of which some place has a gradient that is not 0."""
        return [n for n, p, record in self._some(most) if self._has(p, record)]

    def is_anywhere(self) -> bool:
        """Return whether any of some trained parameters has a gradient that is not 0."""
        return any(self._has(p, record) for _, p, record in self._some(MOST_PLACES))

    def are_gone(self, taught: bool) -> bool:
        """Return whether what the last passes left is thrown away: no step will have it.

        Args:
            taught: those passes taught something.
        """
        if is_view_of_fsdp1(self.found):
            return False  # its flat parameter is not among those that are looked at
        if self._witness is None:
            some = self._some(MOST_PLACES)
            self._witness = next(
                ((p, record) for _, p, record in some if self._has(p, record)), None
            )
            return self._witness is None and taught and engine_that_keeps(self.found) is None
        if self._has(*self._witness):
            return False
        self._witness = None
        return True

    def waiting(self) -> dict[str, Any] | None:
        """Return `waiting` of `arrived`: gradients that the engine has, and this step will not."""
        records = {id(r.parameter): r for r in fsdp2_records(self.found.model).values()}
        trained = [r for r in records.values() if r.sharded.requires_grad]
        count = sum(any(map(_is_nonzero, record.waiting())) for record in trained)
        replicas = any(
            _is_nonzero(getattr(r.group, "_partial_reduce_output", None)) for r in trained
        )
        return {"engine": "FSDP2", "tensors": count, "replicas": replicas} if count else None

    def facts(self, optimizer: Any, arrived: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of `arrived` on where gradients are; the others are known."""
        none = arrived["trained"] == arrived["n_no_gradient"]
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        trained = [p for p in self.found.model.parameters() if p.requires_grad]
        owned = sum(is_owned(p, own) for p in trained)
        if owned < len(trained) and is_shared_out(optimizer):
            owned = len(trained)  # other processes have the other shares
        return {
            "owned": owned,
            "kept_by": self.kept_by(optimizer) if none else None,
            "waiting": self.waiting(),
            "reduced_in": self.reduced_in(),
        }

    def reduced_in(self) -> str | None:
        """Return the dtype in which FSDP2 reduces the final norm's gradient over ranks."""
        if self.found.norm is None:
            return None
        record = fsdp2_records(self.found.model).get(id(self.found.norm.weight))
        if record is None:
            return None
        one = record.parameter
        return str(one.reduce_dtype or one.param_dtype or one.orig_dtype)

    def kept_by(self, optimizer: Any) -> str | None:
        """Return who has the gradients at a step, where the model's parameters have none."""
        mine = {id(p) for p in self.found.model.parameters()}
        own = [p for group in optimizer.param_groups for p in group["params"]]
        copies = [p for p in own if id(p) not in mine]
        if engine := engine_that_keeps(self.found):
            return engine
        if is_shared_out(optimizer):
            return "Megatron-core's distributed optimizer"
        if getattr(optimizer, "_overlap_with_ddp", False):
            return "ZeroRedundancyOptimizer, which steps within DDP's reduction,"
        if copies and len(copies) == len(own) and any(p.grad is not None for p in copies):
            return f"{type(optimizer).__name__}, which has copies of parameters,"
        return None


def engine_that_keeps(found: FoundModel) -> str | None:
    """Return the engine that takes gradients out of `.grad`, by its own marks on parameters."""
    for parameter in found.model.parameters():
        if hasattr(parameter, "ds_id"):
            return "DeepSpeed's ZeRO 3"
        if hasattr(parameter, "_hp_mapping"):
            return "DeepSpeed's optimizer (ZeRO, or that of 16 bits)"
        if getattr(parameter, "_fsdp_flattened", False) or hasattr(parameter, "_local_shard"):
            return "FSDP1"
    return None
