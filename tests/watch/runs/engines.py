"""Gradients between backward and step: engines that keep them, and mistakes that lose them."""

from typing import Any

from tests.watch.runs.expected import Planted, error, warning
from tests.watch.runs.loop import Recipe


def zeroed(model: Any, step: int, rank: int) -> None:
    """Call zero_grad() between backward() and step()."""
    model.zero_grad()


def set_to_zeros(model: Any, step: int, rank: int) -> None:
    model.zero_grad(set_to_none=False)


def zeroed_once(model: Any, step: int, rank: int) -> None:
    if step == 1:
        model.zero_grad()


def second_halves(model: Any, step: int, rank: int) -> None:
    """Take the gradient of every second parameter away, by hand."""
    for number, parameter in enumerate(model.parameters()):
        if number % 2:
            parameter.grad = None


def queries(model: Any, step: int, rank: int) -> None:
    for name, parameter in model.named_parameters():
        if "q_proj" in name:
            parameter.grad.zero_()


def tenth(part: str) -> Any:
    """Make gradients of some parameters a tenth, between backward() and step()."""

    def shrink(model: Any, step: int, rank: int) -> None:
        for name, parameter in model.named_parameters():
            if part in name and parameter.grad is not None:
                parameter.grad.mul_(0.1)

    return shrink


def layers_in_turn(model: Any, step: int, rank: int) -> None:
    """Leave one layer its gradients, another one in each step."""
    for number, layer in enumerate(model.model.layers):
        if number != step % len(model.model.layers):
            layer.zero_grad()


def train_in_turn(model: Any, optimizer: Any, step: int) -> None:
    """Freeze all layers but one, another one in each step."""
    for number, layer in enumerate(model.model.layers):
        layer.requires_grad_(number == (step + 1) % len(model.model.layers))


def first_alone(model: Any) -> None:
    for layer in model.model.layers[1:]:
        layer.requires_grad_(False)


def clip_own_shards(limit: float) -> Any:
    """Clip each rank's shards by their own norm."""

    def clip(model: Any, step: int, rank: int) -> None:
        import torch

        shards = [p.grad.to_local() for p in model.parameters() if p.grad is not None]
        norm = torch.stack([shard.float().norm() for shard in shards]).norm()
        for shard in shards:
            shard.mul_(torch.clamp(limit / (norm + 1e-6), max=1.0))

    return clip


def of_zero(own: list[Any], lr: float) -> Any:
    """Share the optimizer's state out over ranks."""
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(own, torch.optim.AdamW, lr=lr)


_EARLY: list[Any] = []


def make_optimizer(model: Any) -> None:
    """Make the optimizer before the model is sharded."""
    import torch

    _EARLY.append(torch.optim.AdamW(model.parameters(), lr=1e-3))


def head_alone(model: Any) -> set[Any]:
    return {model.lm_head.weight}


def matrix_of_a_layer(model: Any) -> set[Any]:
    return {model.model.layers[1].mlp.up_proj.weight}


def average_ignored(model: Any, step: int, rank: int) -> None:
    """Average over ranks, by hand, what FSDP2 ignores."""
    import torch.distributed as dist

    for parameter in model.parameters():
        if not hasattr(parameter, "full_tensor"):
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def experts_of_a_rank(model: Any) -> None:
    """Draw a matrix of a layer anew on each rank, as experts that a rank alone has."""
    import torch
    import torch.distributed as dist

    weight = model.model.layers[1].mlp.up_proj.weight
    draw = torch.Generator().manual_seed(7 + dist.get_rank())
    with torch.no_grad():
        weight.normal_(0, 0.02, generator=draw)


_SIX = {"num_hidden_layers": 6, "layer_types": ["full_attention"] * 6}


def _fsdp2(**settings: Any) -> Recipe:
    return Recipe(**{"world": 2, "engine": "fsdp2", "reduce": "at the last", **settings})


HEALTHY: dict[str, Recipe] = {
    "one layer's gradients left in turn": Recipe(before_step=layers_in_turn),
    "gradients of one of six layers left in turn": Recipe(before_step=layers_in_turn, config=_SIX),
    "one of six layers trained in turn": Recipe(
        made=lambda model, optimizer: first_alone(model),
        after_step=train_in_turn,
        config=_SIX,
    ),
    "DDP, reduced once a step": Recipe(world=2, reduce="at the last", accumulate=3),
    "DDP, gradients are views of buckets": Recipe(world=2, reduce="at the last", bucket_views=True),
    "DDP, ZeroRedundancyOptimizer": Recipe(world=2, optimizer=of_zero),
    "DDP, ZeroRedundancyOptimizer, views of buckets, reduced once a step": Recipe(
        world=2, optimizer=of_zero, reduce="at the last", bucket_views=True
    ),
    "FSDP2, reduced once a step": _fsdp2(),
    "FSDP2, bfloat16, reduced in float32 once a step": _fsdp2(mixed=("bfloat16", "float32")),
    "FSDP2, bfloat16, reduced in float32 in each pass": _fsdp2(
        mixed=("bfloat16", "float32"), reduce=""
    ),
    "FSDP2, bfloat16, reduced in bfloat16 once a step": _fsdp2(mixed=("bfloat16", "bfloat16")),
    "FSDP2, bfloat16, five micro-batches": _fsdp2(mixed=("bfloat16", None), accumulate=5),
    "FSDP2, bfloat16, clipped": _fsdp2(mixed=("bfloat16", "float32"), clip=0.1),
    "FSDP2, float32, reduced in bfloat16": _fsdp2(mixed=(None, "bfloat16"), accumulate=4),
    "FSDP2, weights kept whole after the forward pass": _fsdp2(
        mixed=("bfloat16", "float32"), reshard=False
    ),
    "FSDP2, a matrix is ignored, and its gradients averaged by hand": _fsdp2(
        ignored=matrix_of_a_layer, before_step=average_ignored
    ),
    "FSDP2, a matrix is ignored, and another one on each rank": _fsdp2(
        ignored=matrix_of_a_layer, built=experts_of_a_rank
    ),
    "FSDP2, two replicas": _fsdp2(mixed=("bfloat16", "float32"), mesh=(2, 1)),
    "FSDP2, 3 ranks, bfloat16": _fsdp2(mixed=("bfloat16", "float32"), world=3, accumulate=3),
}
_NONE, _APART = "parameter-without-gradient", "gradients-differ-between-ranks"
_SCALED = "layers-scaled-apart"
PLANTED: dict[str, Planted] = {
    "gradients zeroed before the step": error(_NONE, before_step=zeroed),
    "gradients set to zeros before the step": error(_NONE, before_step=set_to_zeros),
    "gradients zeroed before the step, LoRA": error(_NONE, before_step=zeroed, adapters=True),
    "gradients zeroed before one of three steps": warning(_NONE, before_step=zeroed_once),
    "gradients of every second parameter taken away": warning(_NONE, before_step=second_halves),
    "gradients of the queries set to zeros": warning(_NONE, before_step=queries),
    "gradients of the embeddings a tenth": warning(_SCALED, before_step=tenth("embed")),
    "gradients of the embeddings a tenth, DDP, clipped": warning(
        _SCALED, before_step=tenth("embed"), world=2, clip=0.1
    ),
    "gradients of tied embeddings a tenth, bfloat16 weights": warning(
        _SCALED,
        before_step=tenth("embed"),
        config={"tie_word_embeddings": True},
        dtype="bfloat16",
        lr=0.05,
    ),
    "gradients of a layer's MLP a tenth": warning(_SCALED, before_step=tenth("1.mlp")),
    "gradients of a layer's attention matrices a tenth, llama": warning(
        _SCALED, before_step=tenth("0.self_attn"), family="llama"
    ),
    "gradients of the head a tenth": warning(_SCALED, before_step=tenth("lm_head")),
    "gradients zeroed before the step, DDP": error(_NONE, before_step=zeroed, world=2),
    "gradients zeroed before the step, ZeroRedundancyOptimizer": error(
        _NONE, before_step=zeroed, world=2, optimizer=of_zero
    ),
    "gradients zeroed before the step, FSDP2": error(
        _NONE, before_step=zeroed, world=2, engine="fsdp2"
    ),
    "gradients never reduced, FSDP2": error(_NONE, world=2, engine="fsdp2", reduce="never"),
    "gradients never reduced, FSDP2, bfloat16": error(
        _NONE, world=2, engine="fsdp2", reduce="never", mixed=("bfloat16", "float32")
    ),
    "gradients of layers never reduced, FSDP2": error(
        _NONE, world=2, engine="fsdp2", reduce="outside of layers"
    ),
    "gradients never reduced, DDP's no_sync": error(_APART, world=2, reduce="never"),
    "an optimizer made before the model is sharded, FSDP2": error(
        "parameter-in-no-group",
        world=2,
        engine="fsdp2",
        built=make_optimizer,
        optimizer=lambda own, lr: _EARLY[-1],
    ),
    "a head that FSDP2 ignores, never reduced": error(
        _APART, world=2, engine="fsdp2", ignored=head_alone
    ),
    "a matrix that FSDP2 ignores, never reduced": error(
        _APART, world=2, engine="fsdp2", ignored=matrix_of_a_layer
    ),
    "shards clipped by their own norm, FSDP2": error(
        _APART, world=2, engine="fsdp2", before_step=clip_own_shards(0.05)
    ),
    "shards clipped by their own norm, FSDP2, 3 ranks": error(
        _APART, world=3, engine="fsdp2", before_step=clip_own_shards(0.05)
    ),
}
