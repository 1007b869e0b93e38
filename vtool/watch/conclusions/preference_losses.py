"""The weight that a preference's loss gives each token of an answer, from the trainer's arguments.

Weights are those of one micro-batch's mean over its pairs (or rows). Positive ones push up.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Coefficients = tuple[float, float]
"""Weights of a chosen and of a rejected answer's log-probability, for one pair."""

BY_LENGTH = frozenset({"ipo", "simpo", "sigmoid_norm"})
"""Losses of the mean over an answer's tokens; all others are of their sum."""
SYMMETRIC = frozenset(
    {"sigmoid", "hinge", "robust", "ipo", "sigmoid_norm", "simpo", "exo_pair", "aot", "discopop"}
)
"""Losses of the difference of both sides alone, in every step."""
_MONOTONE = frozenset(
    {"sigmoid", "hinge", "sigmoid_norm", "simpo", "bco_pair", "apo_zero", "aot", "aot_unpaired"}
    | {"kto", "apo_zero_unpaired", "bco", "orpo"}
)
"""Losses that push chosen answers up and rejected ones down, whatever the margin."""
_SLOPED = frozenset({"sigmoid", "robust", "ipo", "sigmoid_norm", "bco_pair", "sppo_hard", "bco"})
"""Losses whose weights change in the first order of the margin, where it is 0."""
_KTO = ("kto", "apo_zero_unpaired")
_UNPAIRED = frozenset({"kto", "bco"})
_FREE = frozenset({"simpo", "orpo"})


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of one answer, and their log-probabilities."""

    tokens: int
    logp: float


@dataclass(frozen=True, slots=True)
class AnswerBatch:
    """The answers of a micro-batch whose weights share a mean."""

    pairs: int
    chosen_tokens: int
    """Learnt tokens of all chosen rows."""


@dataclass(frozen=True, slots=True)
class PreferenceLoss:
    """A loss of preferences, with the arguments that its trainer was given."""

    method: str
    arguments: Mapping[str, Any]
    is_own: bool = False
    """Methods that make it are not TRL's: it may have terms of its own."""

    def number(self, name: str, default: float = 0.0) -> float:
        """Return an argument that is a number."""
        value = self.arguments.get(name)
        return float(value) if isinstance(value, int | float) else default

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of loss, of which several may be added."""
        given = self.arguments.get("loss_type")
        kinds = given if isinstance(given, list | tuple) else [given]
        known = tuple(str(kind) for kind in kinds if kind)
        if self.method in ("bco", "orpo"):
            return (self.method,)
        if self.method == "kto":  # LLaMA-Factory's arguments have a kind for DPO beside it
            return tuple(kind for kind in known if kind in _KTO)[:1] or ("kto",)
        return known or ("sigmoid",)

    @property
    def factors(self) -> tuple[float, ...]:
        """The factor of each kind."""
        given = self.arguments.get("loss_weights")
        return tuple(map(float, given)) if given else (1.0,) * len(self.kinds)

    @property
    def beta(self) -> float:
        """The trainer's β."""
        return self.number("beta", math.nan)

    @property
    def is_paired(self) -> bool:
        """Return whether rows are pairs, and not single answers with a label."""
        return self.method not in _UNPAIRED

    @property
    def is_free(self) -> bool:
        """Return whether the loss has no reference."""
        if self.method in ("cpo", "orpo") or self.arguments.get("reference_free"):
            return True
        return set(self.kinds) <= _FREE

    @property
    def is_monotone(self) -> bool:
        """Return whether chosen answers go up and rejected ones down, whatever the margin."""
        return set(self.kinds) - {"sft"} <= _MONOTONE and self.number("alpha") == 0

    @property
    def _is_plain(self) -> bool:
        """Return whether rewards are differences of log-probabilities."""
        return str(self.arguments.get("f_divergence_type") or "reverse_kl").endswith("reverse_kl")

    @property
    def is_symmetric(self) -> bool:
        """Return whether both sides of a pair have one size, by token or by answer."""
        return self._is_plain and self.is_paired and set(self.kinds) - {"sft"} <= SYMMETRIC

    @property
    def is_sloped(self) -> bool:
        """Return whether weights show a margin that is small."""
        return bool(self.kinds) and set(self.kinds) - {"sft"} <= _SLOPED

    @property
    def is_by_length(self) -> bool:
        """Return whether it is of the mean over each answer's tokens."""
        if self.method == "orpo" or self.kinds == ("orpo",):
            return True
        return any(kind in BY_LENGTH for kind in self.kinds)

    @property
    def is_mixed(self) -> bool:
        """Return whether some of its kinds are of sums, and some of means."""
        return len({kind in BY_LENGTH for kind in self.kinds if kind != "sft"}) > 1

    @property
    def unknown(self) -> str | None:
        """The reason why its weights are not known, or None."""
        if not math.isfinite(self.beta) or self.beta <= 0:
            return "β is no positive number"
        arguments = self.arguments
        reasons = {
            "use_weighting gives each pair a weight of its own": arguments.get("use_weighting"),
            "ld_alpha gives tokens of one answer different weights": arguments.get("ld_alpha")
            not in (None, 1.0),
            "alpha makes another reward of the log-probabilities (AlphaPO)": self.number("alpha"),
            "pref_bco_weight adds another loss": self.number("bco_weight"),
            "pref_ftx copies answers beside KTO": self.method == "kto" and self.number("ftx"),
            "reference_free: margins are those of the policy": self.method == "dpo"
            and arguments.get("reference_free"),
        }
        if why := next((why for why, there in reasons.items() if there), None):
            return why
        known = _FREE_LOSSES if self.is_free else _AT_REFERENCE
        if odd := [kind for kind in self.kinds if kind not in known and kind != "sft"]:
            return f"weights of a loss {odd[0]!r} are not known here"
        return None

    @property
    def smoothings(self) -> tuple[float, ...]:
        """The label smoothing in the loss; and what it may be, where releases differ in that."""
        given = self.number("label_smoothing")
        if given == 0 or not set(self.kinds) & {"sigmoid", "sigmoid_norm"}:
            return (given,)
        return (given, 0.0) if self.arguments.get("smooths_sigmoid", True) else (0.0, given)

    def most(self) -> Coefficients | None:
        """Return the greatest size that a pair's coefficients can have, for any margin."""
        if self.is_paired and not self._is_plain:
            return None
        total = [0.0, 0.0]
        for kind, factor in zip(self.kinds, self.factors, strict=False):
            if kind not in _MOST or kind in BY_LENGTH:
                return None
            bound = abs(factor) * _MOST[kind] * self.beta
            total = [total[0] + bound, total[1] + bound]
        return self._by_label(total[0], total[1])

    def _by_label(self, chosen: float, rejected: float) -> Coefficients:
        if self.is_paired:
            return chosen, rejected
        good, bad = self.number("desirable_weight", 1.0), self.number("undesirable_weight", 1.0)
        return (chosen * good, rejected * bad) if self.method == "kto" else (chosen, rejected)

    def weights(
        self, smoothing: float, batch: AnswerBatch, chosen: Answer, rejected: Answer
    ) -> Coefficients | None:
        """Return the weight of each token of a pair's answers.

        Where there is a reference, it is that of a policy which is its reference still.
        """
        up = down = 0.0
        for kind, factor in zip(self.kinds, self.factors, strict=False):
            if kind == "sft":
                continue
            if self.is_free:
                found = _FREE_LOSSES[kind](self, smoothing, chosen, rejected)
            else:
                found = _AT_REFERENCE[kind](self, smoothing)
            if found is None:
                return None
            a, b = (factor * each / batch.pairs for each in self._by_label(*found))
            if kind in BY_LENGTH or kind == "orpo":
                a, b = a / max(1, chosen.tokens), b / max(1, rejected.tokens)
            up, down = up + a, down + b
        return up + self.copied(batch, chosen), down

    def copied(self, batch: AnswerBatch, chosen: Answer) -> float:
        """Return the weight that chosen tokens have besides, because the loss also copies them."""
        share = sum(
            factor for kind, factor in zip(self.kinds, self.factors, strict=False) if kind == "sft"
        )
        if self.method == "cpo":
            share += self.number("cpo_alpha", 1.0)
        elif self.method == "orpo":
            share += 1.0
        elif self.arguments.get("rpo_alpha") is not None:
            share += self.number("rpo_alpha")
        by_token = share / max(1, batch.chosen_tokens)
        by_answer = self.number("ftx") + (self.method != "orpo" and self.kinds == ("orpo",))
        return by_token + by_answer / batch.pairs / max(1, chosen.tokens)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _both(size: float) -> Coefficients:
    return size, -size


def _exo(loss: PreferenceLoss, smoothing: float) -> Coefficients | None:
    if not 0 < smoothing < 1:
        return None
    return _both(loss.beta / 4 * math.log((1 - smoothing) / smoothing))


def _discopop(loss: PreferenceLoss, smoothing: float) -> Coefficients | None:
    tau = loss.number("discopop_tau", 0.05)
    if not tau:
        return None
    return _both(loss.beta * (0.75 - (1 - math.log(2)) / (4 * tau)))


def _of_divergence(loss: PreferenceLoss, size: float) -> Coefficients:
    half = str(loss.arguments.get("f_divergence_type")).endswith("js_divergence")
    return _both(size * (0.5 if half else 1.0))


_AT_REFERENCE: Mapping[str, Callable[[PreferenceLoss, float], Coefficients | None]] = {
    "sigmoid": lambda loss, e: _of_divergence(loss, loss.beta / 2 * (1 - 2 * e)),
    "sigmoid_norm": lambda loss, e: _of_divergence(loss, loss.beta / 2),
    "hinge": lambda loss, e: _of_divergence(loss, loss.beta),
    "ipo": lambda loss, e: _of_divergence(loss, 1 / loss.beta),
    "robust": lambda loss, e: _of_divergence(loss, loss.beta / 2 / (1 - 2 * e)),
    "exo_pair": _exo,
    "nca_pair": lambda loss, e: _both(loss.beta / 4),
    "bco_pair": lambda loss, e: _both(loss.beta / 2),
    "sppo_hard": lambda loss, e: _both(1 / loss.beta),
    "aot": lambda loss, e: _both(loss.beta / 2 * (1 - 2 * e)),
    "aot_unpaired": lambda loss, e: _both(loss.beta / 2 * (1 - 2 * e)),
    "apo_zero": lambda loss, e: _both(loss.beta / 4),
    "apo_down": lambda loss, e: (0.0, -loss.beta / 4),
    "discopop": _discopop,
    "kto": lambda loss, e: _both(loss.beta / 4),
    "apo_zero_unpaired": lambda loss, e: _both(loss.beta / 4),
    "bco": lambda loss, e: _both(loss.beta / 2),
}
"""Coefficients where the policy is its reference: σ(0) = ½, σ'(0) = ¼."""

_MOST = {
    "sigmoid": 1.0,
    "hinge": 1.0,
    "bco_pair": 1.0,
    "bco": 1.0,
    "apo_zero": 0.25,
    "kto": 0.25,
    "apo_zero_unpaired": 0.25,
    "aot": 1.0,
    "aot_unpaired": 1.0,
}
"""The greatest size of a coefficient, over β."""


def _margin(loss: PreferenceLoss, chosen: Answer, rejected: Answer) -> float:
    a, b = chosen.logp, rejected.logp
    if loss.is_by_length:
        a, b = a / max(1, chosen.tokens), b / max(1, rejected.tokens)
    return a - b


def _free_sigmoid(
    loss: PreferenceLoss, smoothing: float, chosen: Answer, rejected: Answer
) -> Coefficients:
    x = loss.beta * _margin(loss, chosen, rejected)
    if "simpo" in loss.kinds:
        x -= loss.number("simpo_gamma", 0.5)
    return _both(loss.beta * ((1 - smoothing) * _sigmoid(-x) - smoothing * _sigmoid(x)))


def _free_hinge(
    loss: PreferenceLoss, smoothing: float, chosen: Answer, rejected: Answer
) -> Coefficients:
    return _both(loss.beta if loss.beta * _margin(loss, chosen, rejected) < 1 else 0.0)


def _free_ipo(
    loss: PreferenceLoss, smoothing: float, chosen: Answer, rejected: Answer
) -> Coefficients:
    return _both(1 / loss.beta - 2 * _margin(loss, chosen, rejected))


def _orpo(
    loss: PreferenceLoss, smoothing: float, chosen: Answer, rejected: Answer
) -> Coefficients | None:
    a, b = chosen.logp / max(1, chosen.tokens), rejected.logp / max(1, rejected.tokens)
    if a >= 0 or b >= 0:
        return None
    left = [1 - math.exp(each) for each in (a, b)]
    odds = (a - b) - (math.log(left[0]) - math.log(left[1]))
    size = loss.beta * _sigmoid(-odds)
    return size / left[0], -size / left[1]


_FREE_LOSSES: Mapping[
    str, Callable[[PreferenceLoss, float, Answer, Answer], Coefficients | None]
] = {
    "sigmoid": _free_sigmoid,
    "simpo": _free_sigmoid,
    "hinge": _free_hinge,
    "ipo": _free_ipo,
    "orpo": _orpo,
}
