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
from vtool.engines.contract import Group, Member
from vtool.engines.megatron.groups import Groups
from vtool.engines.megatron.megatron_optimizer import (
    MainShare,
    answer_other_stages,
    build_megatron_optimizer,
    main_shares,
)
from vtool.engines.megatron.weights import LanguageWeights, TowerWeights
from vtool.models.adapters import Adapter, adapter_names, is_adapter, merge_adapter

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

    def hf_weights(self, adapter: Adapter, scale: float) -> Iterator[tuple[str, Tensor]]:
        """Yield transformers' names and whole tensors, one parameter after the other.

        They have the precision that they are trained in, or came in.

        Args:
            adapter: see `vtool.engines.contract.Engine.iter_hf_weights`.
            scale: what an adapter is multiplied by.
        """
        owners = {whole: name for name in self.parameters for whole in self.map.names(name)}
        for name in self.parameters:
            if is_adapter(self.map.names(name)[0]) != (adapter == "only"):
                continue
            for whole, tensor in self._weight(name).items():
                a, b = adapter_names(whole)
                if adapter == "merged" and a in owners:
                    pair = [self._weight(owners[one])[one] for one in (a, b)]
                    yield whole, merge_adapter(tensor, pair[0], pair[1], scale)
                else:
                    yield whole, tensor

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield transformers' names and whole gradients, of the parameters that have one."""
        for name, parameter in self.parameters.items():
            if parameter.requires_grad:
                main = self.mains[parameter].tensor
                yield from self._whole(name, None if main is None else main.grad).items()

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the optimizer's state as `<transformers' name>.<entry>`.

        Parameters that have never been updated have none.
        """
        if not self.parameters:
            return
        for (name, parameter), step in zip(self.parameters.items(), self._steps(), strict=True):
            if not step:
                continue
            own = self._entries(parameter)
            for entry in MOMENTS:
                for whole, tensor in self._whole(name, own.get(entry)).items():
                    yield f"{whole}.{entry}", tensor
            for whole in self.map.names(name):
                yield f"{whole}.step", torch.tensor(float(step))

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
                " Go on without these packages, or with another engine"
            )
        for entry in MOMENTS:
            whole = {one: optimizer[f"{one}.{entry}"] for one in self.map.names(name)}
            share = self.map.cut(name, whole).flatten()[main.start : main.end]
            entries[entry] = share.to(main.tensor.device, main.tensor.dtype, copy=True).view_as(
                main.tensor
            )
        self.optimizer.optimizer.state[main.tensor] = entries

    def optimizer_groups(self) -> Iterator[Group]:
        """Yield the groups of the live optimizer: see `vtool.engines.contract.Engine`.

        A parameter of which this rank updates nothing is in none.
        """
        owners = {
            id(main.tensor): (self.map.names(name)[0], parameter.dim())
            for name, parameter in self.parameters.items()
            if (main := self.mains[parameter]).tensor is not None
        }
        for group in self.optimizer.param_groups:
            members = tuple(Member(*owners[id(one)], one.dtype) for one in group["params"])
            yield Group(self.optimizer.optimizer, group, members)

    def _weight(self, name: str) -> dict[str, Tensor]:
        """Return the whole tensors of a parameter by transformers' names."""
        parameter = self.parameters[name]
        if name in self.frozen:
            share = self.frozen[name].to(parameter.device)
            return self.map.join(name, self.groups.gather_tensor_shares(share))
        whole = self._whole(name, self.mains[parameter].tensor)
        return {each: tensor.float() for each, tensor in whole.items()}

    def _whole(self, name: str, elements: Tensor | None) -> dict[str, Tensor]:
        """Return whole tensors by transformers' names, from this rank's elements of them."""
        share = self._over_copies(self.parameters[name], elements)
        return self.map.join(name, self.groups.gather_tensor_shares(share))

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
        """The optimizer counts the updates of a group, in the group, not those of a parameter.

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
        gathered = self.groups.copies.all_gather(steps)
        return [int(max(column)) for column in zip(*gathered, strict=True)]

    def _over_copies(self, parameter: nn.Parameter, elements: Tensor | None) -> Tensor:
        """Return a tensor of a parameter's shape, joined from the ranks with the same weights.

        Each of them gives the elements that it updates.
        """
        main = self.mains[parameter]
        if main.whole:
            assert elements is not None
            return elements.detach().view_as(parameter)
        whole = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        if elements is not None:
            whole[main.start : main.end] = elements.detach().view(-1)
        # As integers: a sum with zeros then keeps every bit, −0.0 too.
        dist.all_reduce(whole.view(torch.int32), group=self.groups.copies.group)
        return whole.view_as(parameter)
