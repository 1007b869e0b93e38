"""Mistakes around a step: made twice, taken back, of another model; and what looks like them."""

from copy import deepcopy
from typing import Any

_KEPT: list[Any] = []
"""Objects that must stay alive as long as the process."""


def twice(model: Any, optimizer: Any) -> None:
    """Make each step twice, as a trainer's and one's own."""
    inner = optimizer.step

    def step() -> None:
        inner()
        inner()

    optimizer.step = step


def by_another_too(model: Any, optimizer: Any) -> None:
    """Have a second optimizer step with the same parameters and gradients."""
    import torch

    other, inner = torch.optim.AdamW(model.parameters(), lr=1e-3), optimizer.step

    def step() -> None:
        inner()
        other.step()

    optimizer.step = step


def in_turn(model: Any, optimizer: Any) -> None:
    """Have two optimizers take turns, each with gradients of its own."""
    import torch

    turns = [optimizer.step, torch.optim.AdamW(model.parameters(), lr=1e-3).step]

    def step() -> None:
        turns.reverse()
        turns[0]()

    optimizer.step = step


def average_back(model: Any, optimizer: Any, step: int) -> None:
    """Write an average of all weights so far into those that train."""
    import torch

    kept = model.__dict__.setdefault("_average", [p.detach().clone() for p in model.parameters()])
    with torch.no_grad():
        for average, p in zip(kept, model.parameters(), strict=True):
            average.lerp_(p, 0.2)
            p.copy_(average)


def average_every(steps: int) -> Any:
    """Write the average back every few steps."""

    def back(model: Any, optimizer: Any, step: int) -> None:
        if step % steps == steps - 1:
            average_back(model, optimizer, step)

    return back


def remember_first(model: Any, optimizer: Any) -> None:
    """Begin the average with the weights before the first step."""
    model.__dict__["_average"] = [p.detach().clone() for p in model.parameters()]


def no_second_matrix(model: Any, optimizer: Any, step: int) -> None:
    """Set the second matrix of each adapter to zero again."""
    import torch

    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.zero_()


def freeze_second_matrix(model: Any) -> None:
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.requires_grad_(False)


def layer_without_gradient(model: Any) -> None:
    import torch

    layer = model.model.layers[0]
    layer.forward = torch.no_grad()(layer.forward)


def detach_head(model: Any) -> None:
    model.lm_head.register_forward_pre_hook(lambda head, given: (given[0].detach(),))


def head_without_gradient(model: Any) -> None:
    """Compute logits by a function of its own, whose input seems to require no gradient."""
    import torch

    class Logits(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: Any, weight: Any) -> Any:
            flat = hidden.flatten(0, 1).clone()  # what is made here requires no gradient
            ctx.save_for_backward(flat, weight)
            return (flat @ weight.T).view(*hidden.shape[:2], -1)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            flat, weight = ctx.saved_tensors
            mine = (gradient @ weight) if flat.requires_grad else None
            return mine, gradient.flatten(0, 1).T @ flat

    head = model.lm_head
    head.forward = lambda hidden: Logits.apply(hidden, head.weight)


def of_a_copy(model: Any) -> list[Any]:
    """Return the parameters of a copy that is never run."""
    _KEPT.append(deepcopy(model))
    return list(_KEPT[-1].parameters())


def one_layer_in_turn(model: Any, optimizer: Any, step: int) -> None:
    """Train one layer at a time, as LISA does."""
    for number, layer in enumerate(model.model.layers):
        layer.requires_grad_(number == step % 2)


def train_new_tokens(model: Any) -> None:
    """Let no gradient come to the embeddings but those of tokens that no row here has."""
    weight = model.model.embed_tokens.weight
    weight.register_hook(lambda gradient: gradient * 0)


def _groups(own: list[Any], lr: float, last: float) -> Any:
    import torch

    half = len(own) // 2
    return torch.optim.AdamW(
        [{"params": own[:half]}, {"params": own[half:], "lr": last}], lr=lr, weight_decay=0.0
    )


def group_without_rate(own: list[Any], lr: float) -> Any:
    return _groups(own, lr, 0.0)


def group_raised_later(own: list[Any], lr: float) -> Any:
    import torch

    made = _groups(own, lr, lr)
    torch.optim.lr_scheduler.LambdaLR(made, [lambda _: 1.0, lambda step: float(step > 9)])
    return made


def throw_moments_away(model: Any, optimizer: Any, step: int) -> None:
    optimizer.state.clear()


def clip_own(model: Any, step: int, rank: int) -> None:
    """Clip each rank by its own norm, and average gradients over ranks then."""
    import torch
    import torch.distributed as dist

    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def detach_images(model: Any) -> None:
    model.model.multi_modal_projector.register_forward_hook(lambda part, given, out: out.detach())
