"""Losses by hand, their gradients by autograd in float64 or the trainer's own arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from vtool.watch.inject.vtool_watch.solve import LanguageHead, Solution, solve

VOCABULARY, HIDDEN, TOKENS = 512, 48, 64
ROUNDING = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9}


@dataclass(frozen=True)
class Case:
    """Hidden states and gradients of a loss, and what it taught."""

    h: Tensor
    g: Tensor
    head: LanguageHead
    target: Tensor
    weight: Tensor
    u: float

    def solved(
        self, *, guessed: bool = True, head: LanguageHead | None = None, **options: Any
    ) -> Solution:
        guess = self.target if guessed else None
        return solve(self.h, self.g, head or self.head, guess, self.u, **options)


def token_loss(z: Tensor, target: Tensor, kind: str) -> Tensor:
    """Return the loss of each token."""
    ce = cross_entropy(z, target, reduction="none")
    if kind == "smoothing":
        return cross_entropy(z, target, reduction="none", label_smoothing=0.1)
    if kind == "z-loss":
        return ce + 1e-3 * z.logsumexp(-1) ** 2
    if kind == "entropy":
        log_p = z.log_softmax(-1)
        return ce + 0.01 * (log_p.exp() * log_p).sum(-1)
    if kind == "focal":
        return (1 - (-ce).exp()) ** 2 * ce
    if kind == "distillation":
        noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(9), dtype=z.dtype)
        return -((z.detach() + noise).softmax(-1) * z.log_softmax(-1)).sum(-1)
    return ce


def make(
    kind: str = "ce",
    dtype: torch.dtype = torch.float32,
    cap: float | None = None,
    scale: float = 1.0,
    bias: bool = False,
    sharp: float = 1.0,
) -> Case:
    """Return a case; `sharp`: how sure the model is of its targets."""
    random = torch.Generator().manual_seed(3)
    w_head = torch.randn(VOCABULARY, HIDDEN, generator=random) / HIDDEN**0.5
    target = torch.randint(0, VOCABULARY, (TOKENS,), generator=random)
    h = torch.randn(TOKENS, HIDDEN, generator=random) + sharp * w_head[target] * HIDDEN**0.5
    weight = torch.where(torch.arange(TOKENS) % 5 == 0, 2.0, 1.0).double() / TOKENS
    if kind == "signs":
        weight = weight * torch.where(torch.arange(TOKENS) % 3 == 0, -1.0, 1.0)
    w_head, h = w_head.to(dtype), h.to(dtype).requires_grad_()
    b = torch.randn(VOCABULARY, generator=random).to(dtype) if bias else None
    z = linear(h, w_head, b) * scale
    if cap:
        z = cap * torch.tanh(z / cap)
    each = token_loss(z if dtype == torch.float64 else z.float(), target, kind)
    (weight.to(each.dtype) * each).sum().backward()
    assert h.grad is not None
    head = LanguageHead(w_head, b, scale, cap)
    return Case(h.detach(), h.grad, head, target, weight, ROUNDING[dtype])
