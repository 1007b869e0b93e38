"""Values that megatron-core's live objects have of the settings of engine=megatron."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from vtool.config.readback import Observed, observe_values
from vtool.config.schema.megatron import DdpConfig, TransformerConfig
from vtool.engines.megatron.groups import Groups
from vtool.models.observe_model import dtype_name, observe_recomputing

# The tower's DDP has values of its own of these: see `build.optimize_tower`.
OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather", "align_param_gather", "bucket_size")


def observe_process_groups(groups: Groups) -> Iterator[Observed]:
    """Yield the sizes of the process groups that this rank talks to."""
    from megatron.core import parallel_state

    for name, size in (
        ("tensor", dist.get_world_size(groups.tensor)),
        ("pipeline", dist.get_world_size(groups.stages.group)),
        ("context", parallel_state.get_context_parallel_world_size()),
    ):
        yield Observed(f"engine.parallel.{name}", size, f"megatron-core's {name} parallel group")


def observe_bridge(gpt: Any, bridge: Any) -> Iterator[Observed]:
    """Yield the bridge that built a `GPTModel`, which gives it a config of its own.

    Args:
        bridge: mbridge's; None where there is none.
    """
    theirs = bridge is not None and gpt.config is bridge.config
    where = (
        f"{'the config of ' + type(bridge).__name__ if theirs else 'a config of vtool'} in"
        " megatron-core's GPTModel"
    )
    yield Observed("engine.bridge", "mbridge" if theirs else "native", where)


def observe_language(gpt: Any, before: int) -> Iterator[Observed]:
    """Yield the settings as a `GPTModel`, or this stage's share of one, has them.

    Args:
        before: the tower's blocks, which come first.
    """
    layer = gpt.decoder.layers[0]
    linear = layer.mlp.linear_fc1
    where = f"megatron-core's {type(linear).__name__}"
    yield Observed("engine.parallel.sequence", bool(linear.sequence_parallel), where)
    fusions = {
        f"engine.transformer_config.{name}": getattr(layer.config, name)
        for name in TransformerConfig.model_fields
    }
    yield from observe_values(fusions, f"megatron-core's {type(layer).__name__}")
    yield Observed(
        "engine.wrap_config.share_embeddings_and_output_weights",
        gpt.share_embeddings_and_output_weights,
        "megatron-core's GPTModel",
    )
    if gpt.post_process:
        yield Observed(
            "engine.wrap_config.is_value_model",
            gpt.output_layer.output_size == 1,
            "megatron-core's head",
        )
    yield Observed(
        "model.dtype", dtype_name(next(gpt.parameters()).dtype), "megatron-core's weights"
    )
    for each in gpt.decoder.layers:
        recomputing = isinstance(each.forward, partial) and each.forward.func is checkpoint
        where = f"megatron-core's {type(each).__name__}, layer {each.layer_number},"
        yield observe_recomputing(before + each.layer_number - 1, where, on=recomputing)


def observe_megatron_adapters(
    gpt: Any, names: Callable[[str], tuple[str, ...]], component: Callable[[str], str]
) -> Iterator[Observed]:
    """Yield each linear layer that megatron-core's are made of, with an adapter or without.

    Args:
        names: transformers' names of what a parameter, by its name in `gpt`, is made of.
        component: given transformers' name of a layer, which of `model.freeze` it is of.
    """
    for stem, linear in gpt.named_modules():
        if not stem.rpartition(".")[2].startswith("linear_"):
            continue
        pairs = dict(linear.adapters.named_children()) if hasattr(linear, "adapters") else {}
        for layer in (weight.removesuffix(".weight") for weight in names(f"{stem}.weight")):
            pair = pairs.get(layer.rpartition(".")[2])
            yield Observed(
                "lora.layers",
                "an adapter" if pair else "no adapter",
                layer,
                (layer, component(layer)),
            )
            if pair:
                rank = pair.A.shape[0]
                yield Observed("lora.rank", rank, f"A of {layer}")
                yield Observed(
                    "lora.alpha", linear.adapters.scale * rank, f"the scaling of {layer}"
                )


def observe_megatron_ddp(
    ddp: Any, where: str = "megatron-core's DistributedDataParallel", *, overlaps: bool = True
) -> Iterator[Observed]:
    """Yield the settings as megatron-core's DDP has them.

    Args:
        overlaps: whether its collectives overlap with computation as the settings say; the tower's
            do not.
    """
    config, fsdp = ddp.ddp_config, type(ddp).__name__ == "FullyShardedDataParallel"
    values = {
        "engine.kind": "megatron",
        "engine.wrap_config.wrap_with_ddp": True,
        "engine.wrap_config.use_megatron_fsdp": fsdp,
        "engine.wrap_config.use_distributed_optimizer": config.use_distributed_optimizer,
    } | {
        f"engine.ddp_config.{name}": getattr(config, name)
        for name in DdpConfig.model_fields
        if overlaps or name not in OVERLAPS
    }
    yield from observe_values(values, where)
    for buffer in () if fsdp else ddp.buffers:
        # gradients of float32 weights are float32 whatever is asked
        if dtype_name(buffer.param_dtype) != "float32":
            yield Observed(
                "engine.ddp_config.grad_reduce_in_fp32",
                dtype_name(buffer.grad_dtype) == "float32",
                f"the buffer of gradients of {where}",
            )


def observe_megatron_optimizer(optimizer: Any) -> Iterator[Observed]:
    """Yield the settings as a megatron-core optimizer, or a chain of them, has them."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    for one in getattr(optimizer, "chained_optimizers", None) or [optimizer]:
        by_layer = "LayerWise" in type(one).__name__
        values = {
            "engine.wrap_config.use_distributed_optimizer": isinstance(one, DistributedOptimizer),
            "engine.wrap_config.use_layer_wise_distributed_optimizer": by_layer,
        }
        yield from observe_values(values, f"megatron-core's {type(one).__name__}")
