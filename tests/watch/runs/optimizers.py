"""Optimizers that runs are made with."""

from typing import Any


def sgd(own: list[Any], lr: float) -> Any:
    import torch

    return torch.optim.SGD(own, lr=lr, momentum=0.9)


def two_groups(own: list[Any], lr: float) -> Any:
    import torch

    matrices = {"params": [p for p in own if p.dim() > 1], "weight_decay": 0.1}
    return torch.optim.AdamW(
        [matrices, {"params": [p for p in own if p.dim() < 2], "weight_decay": 0.0}], lr=lr
    )


def decays_all(own: list[Any], lr: float) -> Any:
    import torch

    return torch.optim.AdamW(own, lr=lr, weight_decay=0.1)


def maximizes(own: list[Any], lr: float) -> Any:
    import torch

    return torch.optim.AdamW(own, lr=lr, maximize=True)


def from_nought(own: list[Any], lr: float) -> Any:
    import torch

    return torch.optim.AdamW(own, lr=0.0, weight_decay=0.1)


def faster(model: Any, optimizer: Any, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] += 1e-4


class Together:
    """Several optimizers as one."""

    def __init__(self, *optimizers: Any) -> None:
        self.optimizers = optimizers

    def step(self) -> None:
        for each in self.optimizers:
            each.step()

    def zero_grad(self) -> None:
        for each in self.optimizers:
            each.zero_grad()


def muon_and_adamw(own: list[Any], lr: float) -> Any:
    """Momentum that is made orthogonal, for matrices."""
    import torch

    class Muon(torch.optim.Optimizer):
        def __init__(self, own: list[Any]) -> None:
            super().__init__(own, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                x = self.state[p].setdefault("sum", torch.zeros_like(p)).mul_(0.95).add_(p.grad)
                x = x / x.norm().clamp_min(1e-7)
                for _ in range(5):
                    x = 1.5 * x - 0.5 * x @ (x.T @ x)
                p.sub_(lr * x)

    size = max(p.shape[0] for p in own)
    matrices = [p for p in own if p.dim() == 2 and p.shape[0] < size]
    rest = [p for p in own if all(p is not each for each in matrices)]
    return Together(Muon(matrices), torch.optim.AdamW(rest, lr=lr))


def clip_elements(model: Any, step: int, rank: int) -> None:
    import torch

    torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)


def stale_on_a_rank(model: Any, optimizer: Any) -> None:
    """Let the second rank keep its gradients from step to step."""
    import torch.distributed as dist

    if dist.get_rank() == 1:
        optimizer.zero_grad = lambda: None


def of_step_before_on_a_rank(model: Any, step: int, rank: int) -> None:
    """Give the second rank the gradients of the step before."""
    now = [parameter.grad.clone() for parameter in model.parameters()]
    before = model.__dict__.get("_step_before", now)
    model.__dict__["_step_before"] = now
    if rank == 1:
        for parameter, old in zip(model.parameters(), before, strict=True):
            parameter.grad.copy_(old)


def divide_and_clip(model: Any, step: int, rank: int) -> None:
    """Divide gradients by the two micro-batches, which the loss was not, and clip them then."""
    import torch

    for parameter in model.parameters():
        parameter.grad.div_(2)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
