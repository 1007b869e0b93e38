"""A module of the model with a DDP and an optimizer of megatron-core for itself.

The language model and the vision tower are one each: a step without any image leaves the tower
alone, weights and optimizer state to the byte, whereas within one DDP megatron-core would update it
with a gradient of zeros.

State is read and written through the parameters, not through megatron-core's own checkpoints: of
its distributed optimizer without Transformer Engine, one format resumes with a wrong step, one
raises, and one shares a single step among all parameters (0.16.1).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from vtool.config.schema import Optim
from vtool.config.schema.megatron import Megatron
from vtool.engines.contract import GroupMember, OptimizerGroup, Owner
from vtool.engines.megatron.gathering import GRADIENT, WEIGHT, Spread, gather, over_stages
from vtool.engines.megatron.groups import Groups
from vtool.engines.megatron.megatron_optimizer import (
    MainShare,
    answer_other_stages,
    build_megatron_optimizer,
    main_shares,
)
from vtool.engines.megatron.weights import LanguageWeights, TowerWeights
from vtool.models.adapters import Adapter, adapter_names, is_adapter_name, merge_adapter

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Settings, process groups and device of an engine, passed down while it is built."""

    settings: Megatron
    optim: Optim
    groups: Groups
    ddp_config: Any
    """Megatron-core's `DistributedDataParallelConfig`."""
    device: torch.device
    compute_dtype: torch.dtype
    component: Callable[[str], str]
    """Given a parameter's name in files, which of `optim.groups` it is of."""
    checkpointing: int
    """The number of layers of the language model, the first ones, that recompute activations."""


class OptimizedModule:
    """One module on this rank. Each method is called on every rank at the same time."""

    def __init__(
        self,
        module: nn.Module,
        weights: LanguageWeights | TowerWeights,
        config: Any,
        options: BuildOptions,
        ddp: Any = None,
    ) -> None:
        """Wrap a module that has its weights.

        Without a trained parameter, it gets no DDP and no optimizer.

        Args:
            config: megatron-core's `TransformerConfig` of the model.
            ddp: the module's DDP, where a bridge has wrapped it.
        """
        from megatron.core.distributed import DistributedDataParallel

        self.groups, self.map = options.groups, weights
        self.parameters = dict(module.named_parameters())
        self.mains = {one: MainShare(one, 0, one.numel()) for one in self.parameters.values()}
        self.frozen: dict[str, Tensor] = {}
        """Frozen parameters that the compute dtype cannot hold, in the precision that they came in,
        by name.
        """
        self.pieces: dict[nn.Parameter, dict[int, tuple[int, int]]] = {}
        """The elements that each rank among the copies updates, of what no rank updates alone."""
        self.ddp: Any = None
        self.optimizer: Any = None
        stages = self.groups.stages
        trained = stages.all_gather([any(one.requires_grad for one in self.mains)])
        if not trained[stages.rank][0]:
            if any(stage[0] for stage in trained):
                answer_other_stages()
            return
        # it writes into its config
        self.ddp = ddp or DistributedDataParallel(config, replace(options.ddp_config), module)
        self.ddp.broadcast_params()
        treatments = {
            one: options.optim.treatment(options.component(weights.names(name)[0]), one.dim())
            for name, one in self.parameters.items()
        }
        self.optimizer = build_megatron_optimizer(self.ddp, options.optim, config, treatments)
        self.mains |= main_shares(self.optimizer)
        spread = [one for one, main in self.mains.items() if not main.whole]
        if spread:
            theirs = self.groups.copies.all_gather_objects(
                [(self.mains[one].start, self.mains[one].end) for one in spread]
            )
            self.pieces = {
                one: {rank: span for rank, span in enumerate(spans) if span[1] > span[0]}
                for one, *spans in zip(spread, *theirs, strict=True)
            }

    def average_over_tensor_ranks(self) -> None:
        """Make the gradients the mean of the tensor parallel ranks'.

        Each of these ranks computes the whole module. After the reduction over data ranks, and
        before the optimizer takes them. They are the same but for kernels that add up in any order,
        such as the backward pass of attention on CUDA; without this the copies would drift apart.
        With the distributed optimizer a rank's share of the buffer is that of the same elements on
        each.
        """
        if self.groups.tensor_size > 1:
            for buffer in self.ddp.buffers:
                dist.all_reduce(buffer.grad_data, group=self.groups.tensor)
            self.ddp.scale_gradients(1 / self.groups.tensor_size)

    def norm_squared(self) -> Tensor:
        """Return Σ g² over the gradients that this rank counts: float32, a scalar.

        Each element of the model is counted on one rank.
        """
        grads = self.optimizer.get_main_grads_for_grad_norm()
        return get_total_norm(grads).float() ** 2 if grads else torch.zeros(())

    def scale_gradients(self, factor: float) -> None:
        """Multiply the gradients."""
        for parameter in self.optimizer.get_parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def step(self, lr: float) -> None:
        """Take one step of the optimizer."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        self.optimizer.step_with_ready_grads()

    def zero_grad(self) -> None:
        """Let the gradients go."""
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()

    def gather_weights(self) -> None:
        """Gather weights now that the next forward pass would gather."""
        if self.ddp is not None and self.ddp.use_forward_hook:
            self.ddp.start_param_sync(force_sync=True)

    def hf_weights(
        self, adapter: Adapter, scale: float, owner: Owner
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield transformers' names and whole tensors, one parameter after the other.

        They have the precision that they are trained in, or came in, but float32 at least.

        Args:
            adapter: see `vtool.engines.contract.Engine.iter_hf_weights`.
            scale: what an adapter is multiplied by.
            owner: is asked once for a parameter, whatever the number of its tensors.
        """
        spreads = over_stages([self._spread(one, WEIGHT) for one in self.parameters], self.groups)
        named = {name: spread for spread in spreads for name in spread.names}
        for spread in spreads:
            if is_adapter_name(spread.names[0]) != (adapter == "only"):
                continue
            to = owner(spread.bytes())
            whole = self._gather(spread, to)
            for name in spread.names:
                a, b = adapter_names(name)
                merged = adapter == "merged" and a in named
                pair = [self._gather(named[one], to) for one in (a, b) if merged]
                if whole is None:
                    continue
                tensor = whole.pop(name)
                for_a, for_b = pair or (None, None)
                if for_a is not None and for_b is not None:
                    tensor = merge_adapter(tensor, for_a[a], for_b[b], scale)
                yield name, tensor

    def gradients(self, there: bool, owner: Owner) -> Iterator[tuple[str, Tensor]]:
        """Yield transformers' names and whole gradients, of the parameters that have one.

        Args:
            there: whether this step has any.
            owner: see `hf_weights`.
        """
        trained = [name for name, one in self.parameters.items() if there and one.requires_grad]
        spreads = over_stages([self._spread(name, GRADIENT) for name in trained], self.groups)
        for spread in spreads:
            yield from (self._gather(spread, owner(spread.bytes())) or {}).items()

    def state(self, owner: Owner) -> Iterator[tuple[str, Tensor]]:
        """Yield the optimizer's state as `<transformers' name>.<entry>`.

        Parameters that have never been updated have none.
        """
        own = [
            replace(self._spread(name, MOMENTS[0]), steps=steps)
            for name, steps in zip(self.parameters, self._steps(), strict=True)
            if steps
        ]
        for spread in over_stages(own, self.groups):
            for entry in MOMENTS:
                to = owner(spread.bytes())
                whole = self._gather(replace(spread, entry=entry), to) or {}
                yield from ((f"{name}.{entry}", tensor) for name, tensor in whole.items())
            for name in spread.names:
                if owner(torch.float32.itemsize) in (None, self.groups.rank):
                    yield f"{name}.step", torch.tensor(float(spread.steps))

    def load(self, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        """Load whole tensors by transformers' names.

        Args:
            model: the model's tensors, or its adapters' alone.
            optimizer: the optimizer's state.
        """
        if self.optimizer is not None and self.optimizer.optimizer is not None:
            self.optimizer.optimizer.state.clear()
            if self._counts_by_group:
                for group in self.optimizer.optimizer.param_groups:
                    group.pop("step", None)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if self.map.names(name)[0] in model:
                    self._load_weight(name, parameter, model)
                    self._load_entries(name, parameter, optimizer)

    def _load_weight(self, name: str, parameter: nn.Parameter, model: Mapping[str, Tensor]) -> None:
        # a file's dtype may be another than the one that weights come in
        share, main = self.map.cut(name, model).float(), self.mains[parameter]
        parameter.copy_(share)
        # Ranks answer together, for what they then gather is of one dtype: the values of one's
        # share may all fit by chance.
        if not parameter.requires_grad and self.groups.any_tensor_rank(
            not torch.equal(parameter.to(share), share)
        ):
            self.frozen[name] = share.cpu().clone()
        if main.tensor is not None:
            main.tensor.view(-1).copy_(share.flatten()[main.start : main.end])

    def _load_entries(
        self, name: str, parameter: nn.Parameter, optimizer: Mapping[str, Tensor]
    ) -> None:
        main, first = self.mains[parameter], self.map.names(name)[0]
        if main.tensor is None or f"{first}.step" not in optimizer:
            return
        step = optimizer[f"{first}.step"]
        entries: dict[str, Tensor] = {}
        if not self._counts_by_group:
            entries["step"] = step.float().clone()
        elif (counted := self._group(parameter).setdefault("step", int(step))) != int(step):
            raise ValueError(
                f"{first} has been updated {int(step)} times, and others of its group {counted}"
                " times; the fused Adam of Transformer Engine or apex counts once for all of them."
                " Continue without these packages, or with another engine"
            )
        for entry in MOMENTS:
            whole = {one: optimizer[f"{one}.{entry}"] for one in self.map.names(name)}
            share = self.map.cut(name, whole).flatten()[main.start : main.end]
            entries[entry] = share.to(main.tensor.device, main.tensor.dtype, copy=True).view_as(
                main.tensor
            )
        self.optimizer.optimizer.state[main.tensor] = entries

    def optimizer_groups(self) -> Iterator[OptimizerGroup]:
        """Yield the groups of the live optimizer: see `vtool.engines.contract.Engine`.

        A parameter of which this rank updates nothing is in none.
        """
        owners = {
            id(main.tensor): (self.map.names(name)[0], parameter.dim())
            for name, parameter in self.parameters.items()
            if (main := self.mains[parameter]).tensor is not None
        }
        for group in self.optimizer.param_groups:
            members = tuple(GroupMember(*owners[id(one)], one.dtype) for one in group["params"])
            yield OptimizerGroup(self.optimizer.optimizer, group, members)

    def _spread(self, name: str, entry: str) -> Spread:
        """Return where the elements of a parameter are, or of an entry of its state."""
        parameter = self.parameters[name]
        pieces = self.pieces.get(parameter)
        own = self._elements(name, entry) if pieces is None else None
        shares = self.groups.tensor_size if self.map.is_cut(name) else 1
        dtype = torch.float32 if own is None else own.dtype
        stage = self.groups.stages.rank
        return Spread(name, entry, self.map, parameter.shape, dtype, pieces, shares, stage)

    def _gather(self, spread: Spread, to: int | None) -> dict[str, Tensor] | None:
        """Return whole tensors by transformers' names on rank `to`, or on all; elsewhere None."""
        return gather(spread, self._elements, self.groups, to)

    def _elements(self, name: str, entry: str) -> Tensor | None:
        """Return the elements of a parameter that this rank has, or of an entry of its state."""
        parameter = self.parameters[name]
        main = self.mains[parameter].tensor
        if entry == WEIGHT:
            return self.frozen.get(name, main)
        if entry == GRADIENT:
            return None if main is None else main.grad
        return self._entries(parameter).get(entry)

    def _entries(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the optimizer's state of a parameter on this rank."""
        if self.optimizer is None or self.optimizer.optimizer is None:
            return {}
        entries: dict[str, Tensor] = self.optimizer.optimizer.state.get(
            self.mains[parameter].tensor, {}
        )
        return entries

    @property
    def _counts_by_group(self) -> bool:
        """True if the optimizer counts updates in its groups, not for each parameter.

        So does the FusedAdam of Transformer Engine and of apex, which megatron-core takes where it
        can be imported (`optimizer/__init__.py`); torch's own does not.
        """
        return not isinstance(self.optimizer.optimizer, torch.optim.Adam)  # or AdamW, which is one

    def _group(self, parameter: nn.Parameter) -> dict[str, Any]:
        """Return the optimizer's group that a parameter is in."""
        main, groups = self.mains[parameter].tensor, self.optimizer.param_groups
        found: dict[str, Any] = next(
            group for group in groups if any(main is each for each in group["params"])
        )
        return found

    def _steps(self) -> list[int]:
        """Return how often each parameter has been updated.

        A rank that has no share of one's state knows it from the others.
        """
        steps = [0] * len(self.parameters)
        for number, parameter in enumerate(self.parameters.values()):
            if entries := self._entries(parameter):
                counted = self._group(parameter) if self._counts_by_group else entries
                steps[number] = int(counted["step"])
        if not steps:
            return []
        gathered = self.groups.copies.all_gather(steps)
        return [int(max(column)) for column in zip(*gathered, strict=True)]
