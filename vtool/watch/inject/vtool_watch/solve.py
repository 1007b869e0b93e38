"""Reads, from a last hidden state and its gradient, which token was learnt and with what weight.

z = f(W h + b), where f is the identity, a scale, or a soft cap. Token-level cross entropy with
target t and weight w leaves in h the gradient w · Jᵀ(p − e_t), with J = ∂z/∂h. What may be added
to it densely lies in three more known directions: label smoothing (the mean row of the head),
z-loss (Jᵀp), an entropy term (Jᵀ p (log p + H)).

The head is read in blocks of rows, in its own dtype, so no copy of it is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .places import widest

SLACK = 16
"""Roundings off the line, over `resolved`, that a token of a plain loss may be (≤ 8 were seen)."""
_TINY = 1e-30
_BLOCK_BYTES = 192 << 20
_CPU_ROWS = 2048
"""Rows of the head at once on a CPU, so that what is made of them stays in its caches."""
_LIKELY = 8
"""Tokens that are tried before all are compared."""


@dataclass(frozen=True)
class LanguageHead:
    """The weights that make logits of a hidden state, and the function applied to the logits."""

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    cap: float | None = None


@dataclass(frozen=True)
class Solution:
    """Per position: see `micro` in docs/watch-facts.md."""

    target: Tensor
    weight: Tensor
    misfit: Tensor
    plain_misfit: Tensor
    resolved: Tensor
    smooth: Tensor
    z: Tensor
    entropy: Tensor
    noise: Tensor
    """Standard error of the weight, relative to it, from what the fit leaves."""
    rounding: Tensor
    """One rounding of the trainer's arithmetic, times what large logits make of it."""
    logp: Tensor
    """The logarithm of the probability that the model gives the target."""


def precision_for(head: Tensor, rounding: float) -> torch.dtype:
    """Return the dtype to solve in: float64 where the trainer's roundings are as fine as float32's.

    For a large head it is float32: a GPU's float64 is slow, and a CPU's takes four times as long,
    a minute for 1,000 tokens of a vocabulary of 152,000.
    """
    large = 1 << 25 if head.device.type == "cpu" and rounding <= 1e-6 else 1 << 23
    if head.numel() > large:
        return torch.float32
    return widest(head.device)


def solve(
    h: Tensor,
    g: Tensor,
    head: LanguageHead,
    guess: Tensor | None,
    rounding: float,
    dtype: torch.dtype = torch.float64,
    block_bytes: int = _BLOCK_BYTES,
) -> Solution:
    """Solve each position of h [K, H] and its gradient g [K, H].

    Args:
        h: last hidden states.
        g: their gradients.
        head: what makes the logits.
        guess: the token to try first, [K] (the row's next token; −1: none). It is kept where
            rounding explains what is left: a token of which the model is sure leaves next to no
            gradient, and a search among all tokens would name another one.
        rounding: one rounding of the trainer's arithmetic (2⁻²⁴ in float32).
        dtype: what is computed in.
        block_bytes: about what a block of logits, and one of the head's rows, may hold.
    """
    size = torch.finfo(dtype).bits // 8
    positions = max(8, min(512, block_bytes // (head.weight.shape[0] * size)))
    parts = []
    with torch.no_grad(), torch.autocast(h.device.type, enabled=False):
        for at in range(0, h.shape[0], positions):
            to = at + positions
            tried = None if guess is None else _of_head(guess[at:to], head)
            block = _Block(h[at:to].to(dtype), g[at:to].to(dtype), head, block_bytes // size)
            parts.append(block.solve(tried, rounding))
    if not parts:
        none, ids = h.new_zeros(0, dtype=dtype), h.new_zeros(0, dtype=torch.long)
        return Solution(ids, *[none] * 10)
    return Solution(*(torch.cat(each) for each in zip(*parts)))


class _Block:
    """Solves a block of positions against the head, in blocks of its rows."""

    def __init__(self, h: Tensor, g: Tensor, head: LanguageHead, elements: int) -> None:
        self.g, self.head, self.dtype = g, head, h.dtype
        rows = max(256, elements // h.shape[1])
        self.rows = min(rows, _CPU_ROWS) if h.device.type == "cpu" else rows
        self.z = h.new_empty(h.shape[0], head.weight.shape[0])
        # not minus infinity: a bias may mask the ids of a whole block
        most = h.new_full((len(h), 1), torch.finfo(h.dtype).min)
        total, mean = torch.zeros_like(most), torch.zeros_like(h)
        for begin, end, weight in self._weights():  # once, since reading the head takes the time
            z = self._logits(h, weight, begin, end)
            before, most = most, torch.maximum(most, z.amax(-1, keepdim=True))
            shrunk, p = (before - most).exp_(), (z - most).exp_()
            total = total * shrunk + p.sum(-1, keepdim=True)
            mean = mean * shrunk + (p * self._slope(slice(begin, end))) @ weight
        self.log_sum, self.mean_of_p = most + total.log(), mean / total
        self.most = most[:, 0].abs()
        self.size = h.norm(dim=-1) * _row_size(head.weight).to(h)

    def rounding(self, unit: float) -> Tensor:
        """Return a rounding of each position's gradient, for one of the arithmetic.

        A logit z is rounded by |z| roundings where it is written down, and by |h| |W_v| of
        float32's where it is summed; its probability is off by as much. A sum over a large
        vocabulary rounds more often. Factors are measured (vocabulary 1,000 to 262,145, hidden 32
        to 1,024, logits of up to 45).
        """
        written = self.most * unit / 8 if unit > 2.0**-22 else 0.0
        least = unit * max(1.0, math.log2(self.z.shape[1]) / 12)
        each: Tensor = (written + self.size * (0.3 * 2.0**-24)).clamp_min(least)
        return each

    def _logits(self, h: Tensor, weight: Tensor, begin: int, end: int) -> Tensor:
        """Fill `z` from one id to another, and return that part."""
        z = self.z[:, begin:end]
        torch.matmul(h, weight.T, out=z)
        if self.head.bias is not None:
            z += self.head.bias[begin:end].detach().to(self.dtype)
        if self.head.scale != 1.0:
            z *= self.head.scale
        if self.head.cap:
            z.div_(self.head.cap).tanh_().mul_(self.head.cap)
        return z

    def _weights(self) -> Iterator[tuple[int, int, Tensor]]:
        weight = self.head.weight
        for begin in range(0, weight.shape[0], self.rows):
            end = min(begin + self.rows, weight.shape[0])
            yield begin, end, weight[begin:end].detach().to(self.dtype)

    def _p(self, begin: int, end: int) -> Tensor:
        return (self.z[:, begin:end] - self.log_sum).exp_()

    def _slope(self, at: Tensor | slice) -> Tensor | float:
        """Return ∂z/∂(Wh) there: a number where it is constant."""
        if not self.head.cap:
            return self.head.scale
        z = self.z[:, at] if isinstance(at, slice) else self.z.gather(1, at[:, None])[:, 0]
        return (1 - (z / self.head.cap) ** 2) * self.head.scale

    def _back(self, of, at: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        """Return Jᵀx of some positions; `of` gives the columns of x from one id to another."""
        total = torch.zeros_like(self.g)
        for begin, end, weight in self._weights():
            total += (of(begin, end) * self._slope(slice(begin, end))) @ weight
        return total[at]

    def solve(self, guess: Tensor | None, rounding: float) -> tuple[Tensor, ...]:
        """Return the fields of `Solution`, in their order."""
        every = torch.arange(self.g.shape[0], device=self.g.device)
        each = self.rounding(rounding)
        target = torch.zeros_like(every) if guess is None else guess.clamp_min(0)
        weight, off, resolved = self._line(target)
        search = _beyond(off, resolved, each)
        if guess is not None:
            search |= guess < 0
        else:
            search |= True
        if bool(search.any()):
            target = target.clone()
            target[search] = self._best(every[search], each)
            weight, off, resolved = self._line(target)
        plain, noise = off.clone(), self._noise(target, weight, off)
        extra = self.g.new_zeros(3, len(every))
        odd = every[_beyond(off, resolved, each)]
        if len(odd):
            found, parts, left, error = self._dense(odd)
            # three more directions leave less of any noise: they must leave much less
            least = max(1.25, (1 + 90 / max(1, self.g.shape[1] - 4)) ** 0.5)
            better = left * least < off[odd]
            odd, found, parts, left = odd[better], found[better], parts[better], left[better]
            target, weight, off = target.clone(), weight.clone(), off.clone()
            target[odd], off[odd] = found, left
            # the target's part and the smoothed part are one weight
            weight[odd] = -parts[:, 1] - parts[:, 2]
            noise[odd] = error[better] / weight[odd].abs().clamp_min(_TINY)
            extra[:, odd] = torch.stack([parts[:, 2], parts[:, :3].sum(1), parts[:, 3]])
        logp = (self.z.gather(1, target[:, None]) - self.log_sum)[:, 0]
        return target, weight, off, plain, resolved, *extra, noise, each, logp

    def _noise(self, target: Tensor, weight: Tensor, off: Tensor) -> Tensor:
        """Return the relative standard error of least squares along one token's line."""
        size = (self.mean_of_p - self._row(target)).norm(dim=-1) * weight.abs()
        left = off * self.g.norm(dim=-1) / max(1, self.g.shape[1] - 1) ** 0.5
        error: Tensor = left / size.clamp_min(_TINY)
        return error

    def _row(self, target: Tensor, at: Tensor | None = None) -> Tensor:
        """Return Jᵀe of each position's token."""
        row = self.head.weight[target].detach().to(self.dtype)
        if not self.head.cap:
            return row * self.head.scale
        z = (self.z if at is None else self.z[at]).gather(1, target[:, None])
        return row * ((1 - (z / self.head.cap) ** 2) * self.head.scale)

    def _line(self, target: Tensor, at: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return weight, misfit and `resolved` of one token for each position."""
        g, m = (self.g, self.mean_of_p) if at is None else (self.g[at], self.mean_of_p[at])
        row = self._row(target, at)
        d = m - row
        weight = (g * d).sum(-1) / (d * d).sum(-1).clamp_min(_TINY)
        left = (g - weight[:, None] * d).norm(dim=-1)
        size = g.norm(dim=-1).clamp_min(_TINY)
        return weight, left / size, d.norm(dim=-1) / row.norm(dim=-1).clamp_min(_TINY)

    def _best(self, at: Tensor, rounding: Tensor) -> Tensor:
        """Return the token whose line is nearest, for some positions.

        The likely tokens are tried first, since they take half as long to find. One of them is
        kept where rounding explains what is left, as the guess is; elsewhere all are compared.
        """
        likely = self._likely(at)
        best, least = likely[0], self.g.new_full((len(at),), torch.inf)
        for token in likely:
            _, off, resolved = self._line(token, at)
            off = torch.where(_beyond(off, resolved, rounding[at]) | (off > 0.5), torch.inf, off)
            best, least = torch.where(off < least, token, best), torch.minimum(off, least)
        odd = least.isinf()
        if bool(odd.any()):
            best = best.clone()
            best[odd] = self._nearest(at[odd])
        return best

    def _likely(self, at: Tensor) -> Tensor:
        """Return a few tokens for each of some positions [tokens, positions].

        They are the one that the model holds for most likely, and those with the greatest share
        of the gradient along their line, if rows of the head and Jᵀp had in common only the mean
        direction of the latter.
        """
        g, m = self.g[at], self.mean_of_p[at]
        common = m.mean(0) / m.mean(0).norm().clamp_min(_TINY)
        twice = -2 * (m @ common)[:, None]
        gm, mm = (g * m).sum(-1, keepdim=True), (m * m).sum(-1, keepdim=True)
        share, ids = g.new_zeros(len(at), 0), at.new_zeros(len(at), 0)
        for begin, end, weight in self._weights():
            slope = self._slope(slice(begin, end))
            slope = slope[at] if isinstance(slope, Tensor) else slope
            along = (g @ weight.T).mul_(slope).neg_().add_(gm).square_()
            size = (twice * (weight @ common)).mul_(slope).add_(mm)
            size += (weight * weight).sum(-1) * slope * slope
            along /= size.clamp_min_(_TINY)
            found, index = along.topk(min(_LIKELY, end - begin), sorted=False)
            share, ids = torch.cat([share, found], 1), torch.cat([ids, index + begin], 1)
            share, kept = share.topk(min(_LIKELY, share.shape[1]), sorted=False)
            ids = ids.gather(1, kept)
        return torch.cat([self.z.argmax(-1)[at][None], ids.T])

    def _nearest(self, at: Tensor) -> Tensor:
        """Return the token whose line is nearest, among all, for some positions."""
        g, m = self.g[at], self.mean_of_p[at]
        gm, mm = (g * m).sum(-1, keepdim=True), (m * m).sum(-1, keepdim=True)
        most, best = g.new_full((len(at),), -1.0), torch.zeros_like(at)
        for begin, end, weight in self._weights():
            slope = self._slope(slice(begin, end))
            slope = slope[at] if isinstance(slope, Tensor) else slope
            along = (g @ weight.T).mul_(slope).neg_().add_(gm).square_()
            size = (m @ weight.T).mul_(-2).mul_(slope).add_(mm)
            size += (weight * weight).sum(-1) * slope * slope
            value, index = along.div_(size.clamp_min_(_TINY)).max(-1)
            best = torch.where(value > most, index + begin, best)
            most = torch.maximum(most, value)
        return best

    def _dense(self, at: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return token, parts (of Jᵀp, its row, the mean row, the entropy's), misfit and error.

        The error is the standard error of the weight: where p is nearly even, the directions are
        nearly one, and their parts are known badly, though what is left is small.
        """
        ones = torch.ones((1, 1), dtype=self.dtype, device=self.g.device)
        count = self.head.weight.shape[0]
        mean = self._back(lambda b, e: (ones / count).expand(len(self.g), e - b), at)
        inner = sum(
            (self._p(b, e) * (self.z[:, b:e] - self.log_sum)).sum(-1, keepdim=True)
            for b, e, _ in self._weights()
        )
        entropy = self._back(
            lambda b, e: self._p(b, e) * (self.z[:, b:e] - self.log_sum - inner), at
        )
        g, m = self.g[at], self.mean_of_p[at]
        basis = torch.stack([m, mean, entropy], -1)
        basis = torch.linalg.qr(basis / basis.norm(dim=1, keepdim=True).clamp_min(_TINY)).Q
        rest = g - (basis @ (basis.mT @ g.unsqueeze(-1)))[..., 0]
        most, best = g.new_full((len(at),), -1.0), torch.zeros_like(at)
        for begin, end, weight in self._weights():
            slope = self._slope(slice(begin, end))
            slope = slope[at] if isinstance(slope, Tensor) else slope
            inside = sum(((basis[:, :, k] @ weight.T) * slope) ** 2 for k in range(basis.shape[-1]))
            left = ((weight * weight).sum(-1) * slope * slope - inside).clamp_min(_TINY)
            value, index = (((rest @ weight.T) * slope) ** 2 / left).max(-1)
            best = torch.where(value > most, index + begin, best)
            most = torch.maximum(most, value)
        parts, left, error = _fit(g, torch.stack([m, self._row(best, at), mean, entropy], -1))
        return best, parts, left, error


def _of_head(guess: Tensor, head: LanguageHead) -> Tensor:
    """Return guesses, without ids that the head does not have: on a GPU these end the process."""
    return torch.where(guess < head.weight.shape[0], guess, -1)


def _row_size(weight: Tensor) -> Tensor:
    """Return the root mean square of the norms of rows, of some of them."""
    some = weight.detach()[:: max(1, weight.shape[0] // _CPU_ROWS)]
    size: Tensor = some.float().norm(dim=-1).square().mean().sqrt()
    return size


def _beyond(off: Tensor, resolved: Tensor, rounding: Tensor) -> Tensor:
    return (off * resolved > SLACK * rounding) & (off > SLACK * rounding)


def _fit(g: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return least squares of g [K, H] by columns [K, H, C], and what is left, relative to g.

    Third, the standard error of the sum of the second and the third part: of the weight.
    """
    size = columns.norm(dim=1, keepdim=True).clamp_min(_TINY)
    scaled = (columns / size).cpu()  # a few small systems: the CPU's solver takes any rank
    driver = torch.linalg.lstsq(scaled, g.cpu().unsqueeze(-1), driver="gelsd")
    parts = driver.solution[..., 0].to(g.device)
    left = (g - ((columns / size) * parts[:, None, :]).sum(-1)).norm(dim=-1)
    wide = scaled.double()
    inverse = torch.linalg.pinv(wide.mT @ wide, rtol=1e-14, hermitian=True)
    summed = torch.zeros_like(size[:, 0, :], device="cpu", dtype=torch.float64)
    summed[:, 1:3] = 1 / size[:, 0, 1:3].cpu().double()
    spread = (summed[:, None] @ inverse @ summed[..., None])[:, 0, 0].clamp_min(0).sqrt()
    freedom = max(1, g.shape[1] - columns.shape[-1]) ** 0.5
    error = spread.to(g.device, g.dtype) * left / freedom
    return parts / size[:, 0, :], left / g.norm(dim=-1).clamp_min(_TINY), error
