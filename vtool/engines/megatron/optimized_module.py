"""A part of a model, with a DDP and an optimizer of megatron-core for itself.

The language model and the vision tower are a part each: a step without any image leaves the tower's
part alone, weights and optimizer state to the byte, whereas within one part megatron-core would
update it with a gradient of zeros.

State is read and written through the parameters, not through megatron-core's own checkpoints: of
its distributed optimizer without Transformer Engine, one format resumes with a wrong step, one
raises, and one shares a single step among all parameters (0.16.1).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from vtool.config.schema import Optim
from vtool.engines.contract import Group, Member
from vtool.engines.megatron.groups import Groups
from vtool.models.adapters import Adapter, adapter_names, is_adapter, merge_adapter

MOMENTS = ("exp_avg", "exp_avg_sq")
Join = Callable[[str, Sequence[Tensor]], dict[str, Tensor]]
"""Given a parameter's name and its share on each tensor parallel rank:

whole tensors by transformers' names.
"""
Cut = Callable[[str, Mapping[str, Tensor]], Tensor]
"""Given a parameter's name and whole tensors by transformers' names: this rank's share."""


class OptimizedModule:
    """One part on this rank. All that it does is done on every rank at the same time."""

    def __init__(
        self,
        module: nn.Module,
        config: Any,
        ddp_config: Any,
        optim: Optim,
        groups: Groups,
        names: Callable[[str], tuple[str, ...]],
        join: Join,
        cut: Cut,
        part: Callable[[str], str],
        ddp: Any = None,
    ) -> None:
        """Wrap a module that has its weights. Where none of them is trained, it is not wrapped, and
        has no optimizer.

        Args:
            config: megatron-core's `TransformerConfig` of the model.
            names: transformers' names of what a parameter, by its name in the module, is made of.
            part: which of `optim.groups` a parameter is of, by transformers' name.
            ddp: the module's DDP, where a bridge has wrapped it.
        """
        from megatron.core.distributed import DistributedDataParallel

        self.groups, self.names, self._join, self._cut = groups, names, join, cut
        self.parameters = dict(module.named_parameters())
        self.mains = {
            parameter: _Main(parameter, 0, parameter.numel())
            for parameter in self.parameters.values()
        }
        self.frozen: dict[str, Tensor] = {}
        """What of frozen parameters the compute dtype cannot hold, in the precision that they came
        in, by name.
        """
        self.ddp: Any = None
        self.optimizer: Any = None
        trained = groups.stages.all_gather(
            [any(parameter.requires_grad for parameter in self.parameters.values())]
        )
        if not trained[groups.stages.rank][0]:
            if any(stage[0] for stage in trained):
                _answer_other_stages()
            return
        # it writes into its config
        self.ddp = ddp or DistributedDataParallel(config, replace(ddp_config), module)
        self.ddp.broadcast_params()
        treatments = {
            parameter: optim.treatment(part(names(name)[0]), parameter.dim())
            for name, parameter in self.parameters.items()
        }
        self.optimizer = _optimizer(self.ddp, optim, config, treatments)
        self.mains |= _mains(self.optimizer)

    def average_over_tensor_ranks(self) -> None:
        """For a part that each tensor parallel rank computes whole: make its gradients the ranks'
        mean, on each of them.

        After the reduction over data ranks, and before the optimizer takes them. They are the same
        but for kernels that add up in any order, such as the backward pass of attention on CUDA;
        without this the copies would drift apart. With the distributed optimizer a rank's share of
        the buffer is that of the same elements on each.
        """
        if self.groups.tensor_size > 1:
            for buffer in self.ddp.buffers:
                dist.all_reduce(buffer.grad_data, group=self.groups.tensor)
            self.ddp.scale_gradients(1 / self.groups.tensor_size)

    def norm_squared(self) -> Tensor:
        """Σ g² over the gradients that this rank answers for, each element of the model on one
        rank: float32, a scalar.
        """
        grads = self.optimizer.get_main_grads_for_grad_norm()
        return get_total_norm(grads).float() ** 2 if grads else torch.zeros(())

    def scale(self, factor: float) -> None:
        """Multiply the gradients."""
        for parameter in self.optimizer.get_parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def update(self, lr: float) -> None:
        """One step of the optimizer."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        self.optimizer.step_with_ready_grads()

    def zero(self) -> None:
        """Let the gradients go."""
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()

    def settle(self) -> None:
        """Have all weights here, where they are otherwise gathered when the next forward pass needs
        them.
        """
        if self.ddp is not None and self.ddp.use_forward_hook:
            self.ddp.start_param_sync(force_sync=True)

    def weights(self, adapter: Adapter, scale: float) -> Iterator[tuple[str, Tensor]]:
        """Transformers' names and whole tensors, one parameter after the other, in the precision
        that they are trained in, or came in.

        Args:
            adapter: see `vtool.engines.contract.Engine.iter_hf_weights`.
            scale: what an adapter is multiplied by.
        """
        owners = {whole: name for name in self.parameters for whole in self.names(name)}
        for name in self.parameters:
            if is_adapter(self.names(name)[0]) != (adapter == "only"):
                continue
            for whole, tensor in self._weight(name).items():
                a, b = adapter_names(whole)
                if adapter == "merged" and a in owners:
                    yield (
                        whole,
                        merge_adapter(
                            tensor, self._weight(owners[a])[a], self._weight(owners[b])[b], scale
                        ),
                    )
                else:
                    yield whole, tensor

    def _weight(self, name: str) -> dict[str, Tensor]:
        parameter = self.parameters[name]
        if name in self.frozen:
            return self._whole(name, self.frozen[name].to(parameter.device))
        return {
            whole: tensor.float()
            for whole, tensor in self._whole(
                name, self._over_copies(parameter, self.mains[parameter].tensor)
            ).items()
        }

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """The same, of the gradients that are ready; parameters without one are left out."""
        for name, parameter in self.parameters.items():
            if parameter.requires_grad:
                main = self.mains[parameter].tensor
                yield from self._whole(
                    name, self._over_copies(parameter, None if main is None else main.grad)
                ).items()

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """The optimizer's state as `<transformers' name>.<entry>`;

        of parameters that have never been updated there is none.
        """
        if not self.parameters:
            return
        for (name, parameter), step in zip(self.parameters.items(), self._steps(), strict=True):
            if not step:
                continue
            own = self._entries(parameter)
            for entry in MOMENTS:
                for whole, tensor in self._whole(
                    name, self._over_copies(parameter, own.get(entry))
                ).items():
                    yield f"{whole}.{entry}", tensor
            for whole in self.names(name):
                yield f"{whole}.step", torch.tensor(float(step))

    def load(self, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        """Take up whole tensors by transformers' names, of the model, or of its adapters alone, and
        of the optimizer.
        """
        if self.optimizer is not None and self.optimizer.optimizer is not None:
            self.optimizer.optimizer.state.clear()
            if self._counts_by_group:
                for group in self.optimizer.optimizer.param_groups:
                    group.pop("step", None)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if self.names(name)[0] not in model:
                    continue
                share, main = self._cut(name, model), self.mains[parameter]
                parameter.copy_(share)
                # Ranks answer together, for what they then gather is of one dtype: the values of
                # one's share may all fit by chance.
                if not parameter.requires_grad and self.groups.any_tensor_rank(
                    not torch.equal(parameter.to(share), share)
                ):
                    self.frozen[name] = share.cpu().clone()
                if main.tensor is not None:
                    main.tensor.view(-1).copy_(share.flatten()[main.start : main.end])
                first = self.names(name)[0]
                if main.tensor is None or f"{first}.step" not in optimizer:
                    continue
                step = optimizer[f"{first}.step"]
                entries = {} if self._counts_by_group else {"step": step.float().clone()}
                if self._counts_by_group and self._group(parameter).setdefault(
                    "step", int(step)
                ) != int(step):
                    raise ValueError(
                        f"{first} has been updated {int(step)} times, and others of its group"
                        f" {self._group(parameter)['step']} times; the fused Adam of Transformer"
                        " Engine or apex counts once for all of them. Go on without these"
                        " packages, or with another engine"
                    )
                for entry in MOMENTS:
                    whole = {one: optimizer[f"{one}.{entry}"] for one in self.names(name)}
                    mine = self._cut(name, whole).flatten()[main.start : main.end]
                    entries[entry] = mine.to(
                        main.tensor.device, main.tensor.dtype, copy=True
                    ).view_as(main.tensor)
                self.optimizer.optimizer.state[main.tensor] = entries

    def optimizer_groups(self) -> Iterator[Group]:
        """See `vtool.engines.contract.Engine.optimizer_groups`.

        A parameter of which this rank updates nothing is in none.
        """
        owners = {
            id(main.tensor): (name, parameter)
            for name, parameter in self.parameters.items()
            if (main := self.mains[parameter]).tensor is not None
        }
        for group in self.optimizer.param_groups:
            mains = [(*owners[id(one)], one.dtype) for one in group["params"]]
            members = tuple(
                Member(self.names(name)[0], parameter.dim(), dtype)
                for name, parameter, dtype in mains
            )
            yield Group(self.optimizer.optimizer, group, members)

    def _whole(self, name: str, share: Tensor) -> dict[str, Tensor]:
        return self._join(name, self.groups.gather_tensor_shares(share))

    def _entries(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        if self.optimizer is None or self.optimizer.optimizer is None:
            return {}
        entries: dict[str, Tensor] = self.optimizer.optimizer.state.get(
            self.mains[parameter].tensor, {}
        )
        return entries

    @property
    def _counts_by_group(self) -> bool:
        """Whether the optimizer counts the updates of a group, in the group, and not those of a
        parameter, in its state.

        So does the FusedAdam of Transformer Engine and of apex, which megatron-core takes where it
        can be imported (`optimizer/__init__.py`); torch's own does not.
        """
        return not isinstance(self.optimizer.optimizer, torch.optim.Adam)  # or AdamW, which is one

    def _group(self, parameter: nn.Parameter) -> dict[str, Any]:
        main = self.mains[parameter].tensor
        found: dict[str, Any] = next(
            one
            for one in self.optimizer.param_groups
            if any(main is each for each in one["params"])
        )
        return found

    def _steps(self) -> list[int]:
        """How often each parameter has been updated.

        A rank that has no share of one's state knows it from the others.
        """
        steps = [
            (
                int(
                    (self._group(parameter) if self._counts_by_group else self._entries(parameter))[
                        "step"
                    ]
                )
                if self._entries(parameter)
                else 0
            )
            for parameter in self.parameters.values()
        ]
        return [
            int(max(column)) for column in zip(*self.groups.copies.all_gather(steps), strict=True)
        ]

    def _over_copies(self, parameter: nn.Parameter, mine: Tensor | None) -> Tensor:
        """A tensor of a parameter's shape from what each rank that has the same weights updates of
        it.
        """
        main = self.mains[parameter]
        if main.whole:
            assert mine is not None
            return mine.detach().view_as(parameter)
        whole = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        if mine is not None:
            whole[main.start : main.end] = mine.detach().view(-1)
        # As integers: a sum with zeros then keeps every bit, −0.0 too.
        dist.all_reduce(whole.view(torch.int32), group=self.groups.copies.group)
        return whole.view_as(parameter)


class _Main:
    """What the optimizer updates of a parameter on this rank:

    its elements from `start` to `end`, in float32.
    """

    def __init__(self, tensor: Tensor | None, start: int, end: int, *, whole: bool = True) -> None:
        self.tensor, self.start, self.end, self.whole = tensor, start, end, whole


def _answer_other_stages() -> None:
    """Be there while other pipeline stages make an optimizer, which this one has nothing for.

    Megatron-core compares the kinds of parameters of all ranks of a run, once for each of its two
    lists (`optimizer/__init__.py`).
    """
    from megatron.core.optimizer import OptimizerConfig, _get_param_groups

    for _list in ("dense", "expert"):
        _get_param_groups([], OptimizerConfig(), {})


def _optimizer(
    ddp: Any, optim: Optim, config: Any, treatments: Mapping[nn.Parameter, tuple[float, float]]
) -> Any:
    """`treatments`: of each parameter, its learning rate divided by `optim.lr`, and its decay."""
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.optimizer_config import ParamKey, ParamPredicate

    settings = OptimizerConfig(
        optimizer="adam",
        lr=optim.lr,
        weight_decay=optim.weight_decay,
        adam_beta1=optim.betas[0],
        adam_beta2=optim.betas[1],
        adam_eps=optim.eps,
        bf16=config.bf16,
        params_dtype=config.params_dtype,
        use_distributed_optimizer=ddp.ddp_config.use_distributed_optimizer,
        overlap_param_gather=ddp.ddp_config.overlap_param_gather,
    )
    # Megatron-LM's scheduler would read these off each group, and apply them. There is none here.
    overrides = {
        ParamKey(
            predicate=ParamPredicate(
                name=str(treatment),
                fn=lambda parameter, wanted=treatment: treatments[parameter] == wanted,
            )
        ): {
            "max_lr": treatment[0] * optim.lr,
            "start_wd": treatment[1],
        }
        for treatment in dict.fromkeys(treatments.values())
    }
    chain = get_megatron_optimizer(
        settings, [ddp], config_overrides=overrides, use_gloo_process_groups=False
    )
    (optimizer,) = chain.chained_optimizers
    for group in optimizer.param_groups:
        group["weight_decay"], group["lr_factor"] = group["start_wd"], group["max_lr"] / optim.lr
    return optimizer


def _mains(optimizer: Any) -> dict[nn.Parameter, _Main]:
    """What an optimizer updates in the place of parameters: float32 copies, or shares."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params

    mains: dict[nn.Parameter, _Main] = {}
    if isinstance(optimizer, DistributedOptimizer):
        pairs = (
            (optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups),
            (optimizer.model_fp32_groups, optimizer.shard_fp32_groups),
        )
        # Parameters whose every element another rank updates are in no group here.
        for buffer in optimizer.buffers:
            mains |= {parameter: _Main(None, 0, 0, whole=False) for parameter in buffer.params}
        for parameter, main in _pairs(pairs):
            piece = optimizer._get_model_param_range_map(parameter)["param"]
            mains[parameter] = _Main(main, piece.start, piece.end, whole=False)
    elif isinstance(optimizer, Float16OptimizerWithFloat16Params):
        for parameter, main in _pairs(
            ((optimizer.float16_groups, optimizer.fp32_from_float16_groups),)
        ):
            mains[parameter] = _Main(main, 0, parameter.numel())
    return mains


def _pairs(groups: Sequence[tuple[Any, Any]]) -> Iterator[tuple[nn.Parameter, Tensor]]:
    for ours, theirs in groups:
        for one, other in zip(ours, theirs, strict=True):
            yield from zip(one, other, strict=True)
