"""Megatron-core's optimizer of one module, and the elements of parameters that it updates here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vtool.config.schema import Optim


@dataclass(frozen=True, slots=True)
class MainShare:
    """The share of a parameter that the optimizer updates on this rank.

    Its elements from `start` to `end`, in float32.
    """

    tensor: Tensor | None
    """None: other ranks update all of it."""
    start: int
    end: int
    whole: bool = True
    """Every rank that has the parameter updates all of it."""


def build_megatron_optimizer(
    ddp: Any, optim: Optim, config: Any, treatments: Mapping[nn.Parameter, tuple[float, float]]
) -> Any:
    """Build Adam for the parameters of megatron-core's DDP, in groups of one treatment each.

    Args:
        config: megatron-core's `TransformerConfig` of the model.
        treatments: by parameter, its learning rate divided by `optim.lr`, and its weight decay.
    """
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

    def of(treatment: tuple[float, float]) -> ParamKey:
        return ParamKey(
            predicate=ParamPredicate(
                name=str(treatment), fn=lambda parameter: treatments[parameter] == treatment
            )
        )

    # Megatron-LM's scheduler would read these off each group, and apply them. There is none here.
    overrides = {
        of(treatment): {"max_lr": treatment[0] * optim.lr, "start_wd": treatment[1]}
        for treatment in dict.fromkeys(treatments.values())
    }
    (optimizer,) = get_megatron_optimizer(
        settings, [ddp], config_overrides=overrides, use_gloo_process_groups=False
    ).chained_optimizers
    for group in optimizer.param_groups:
        group["weight_decay"], group["lr_factor"] = group["start_wd"], group["max_lr"] / optim.lr
    return optimizer


def answer_other_stages() -> None:
    """Take part while other pipeline stages build an optimizer, with nothing to train on this one.

    Megatron-core compares the kinds of parameters of all ranks of a run, once for each of its two
    lists (`optimizer/__init__.py`).
    """
    from megatron.core.optimizer import OptimizerConfig, _get_param_groups

    for _list in ("dense", "expert"):
        _get_param_groups([], OptimizerConfig(), {})


def main_shares(optimizer: Any) -> dict[nn.Parameter, MainShare]:
    """Return the tensors that an optimizer updates for parameters: float32 copies, or shares."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params

    mains: dict[nn.Parameter, MainShare] = {}
    if isinstance(optimizer, DistributedOptimizer):
        # Parameters whose every element another rank updates are in no group here.
        for buffer in optimizer.buffers:
            mains |= {one: MainShare(None, 0, 0, whole=False) for one in buffer.params}
        for parameter, main in _pairs(
            (optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups),
            (optimizer.model_fp32_groups, optimizer.shard_fp32_groups),
        ):
            piece = optimizer._get_model_param_range_map(parameter)["param"]
            mains[parameter] = MainShare(main, piece.start, piece.end, whole=False)
    elif isinstance(optimizer, Float16OptimizerWithFloat16Params):
        for parameter, main in _pairs(
            (optimizer.float16_groups, optimizer.fp32_from_float16_groups)
        ):
            mains[parameter] = MainShare(main, 0, parameter.numel())
    return mains


def _pairs(*groups: tuple[Any, Any]) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield each parameter and its float32 counterpart, from two lists of lists of them."""
    for ours, theirs in groups:
        for one, other in zip(ours, theirs, strict=True):
            yield from zip(one, other, strict=True)
