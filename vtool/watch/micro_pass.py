"""One forward and backward pass of a watched step, as its facts have it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FLOAT32_ROUNDING = 2.0**-24
"""One rounding in float32."""
EVEN_WITHIN = 1e-3
"""A ratio of weights that nobody would ask for on purpose: dense terms leave a part of it in the
weight of a token, and a tenth in their median."""

Fact = Mapping[str, Any]


def not_null(fact: Fact, name: str) -> Any:
    """Return a field that is null only in facts that are damaged: no list, and no number, of it.

    Raises:
        TypeError: it is null, which would look as if it were empty.
    """
    value = fact[name]
    if value is None:
        raise TypeError(f"{name} is null")
    return value


@dataclass(frozen=True, slots=True)
class LearntRow:
    """The learnt tokens of one row of a micro-batch."""

    tokens: int
    solved: int
    total: float
    low: float
    high: float
    positive: int
    negative: int

    @property
    def middle(self) -> float:
        """The mean weight."""
        return self.total / self.solved if self.solved else 0.0


@dataclass(frozen=True, slots=True)
class Tokens:
    """The learnt tokens of a row, one by one."""

    row: int
    position: tuple[int, ...]
    target: tuple[int, ...]
    next: tuple[int, ...] | None
    weight: tuple[float, ...]
    resolved: tuple[float, ...]

    def is_of(self, ids: Sequence[int]) -> bool:
        """Return whether these are tokens of a row with these ids."""
        if self.next is None:
            return False
        following = zip(self.position, self.next, strict=True)
        return all(
            ids[at + 1] == token for at, token in following if at + 1 < len(ids) and token >= 0
        )


@dataclass(frozen=True, slots=True)
class OfTarget:
    """The measured weights of one id in a micro-batch."""

    count: int
    weight: float
    """Their median."""
    single: float
    """The relative error that may be left in one of them."""
    apart: float
    """The greatest relative distance of one of them from the median."""

    @property
    def tolerance(self) -> float:
        """The relative error of the median."""
        return self.single / math.sqrt(self.count)


@dataclass(frozen=True, slots=True)
class MicroPass:
    """One forward and backward pass of a step that was read."""

    step: int
    rank: int
    index: int
    supervised: int
    fact: Fact

    def __str__(self) -> str:
        return f"step {self.step + 1}, micro-batch {self.index + 1}, rank {self.rank}"

    @property
    def unit(self) -> float:
        """One rounding of the coarsest arithmetic that was used."""
        return float(self.fact["u"])

    @property
    def is_coarse(self) -> bool:
        """True if something was computed more coarsely than in float32."""
        return self.unit > 4 * FLOAT32_ROUNDING

    @property
    def solved(self) -> int:
        """Supervised tokens whose weight was computed from the gradient."""
        return int(self.fact["solved"])

    @property
    def is_read(self) -> bool:
        """Return whether nearly every token lies on the line of a loss that is understood."""
        return self.solved > 0 and int(self.fact["read"]) >= 0.9 * self.solved

    @property
    def misfit(self) -> float:
        """The median relative distance of tokens from a loss that is understood."""
        return _middle(self.fact["misfit"])

    @property
    def measured(self) -> int:
        """Count the tokens that are uncertain enough for their weight to be compared."""
        return int(self.fact["measured"])

    @property
    def quantiles(self) -> Sequence[float]:
        """The least, median, 99th percentile and greatest weight of tokens that are measured."""
        if not self.measured:
            return (0.0,) * 4
        found = self.fact["measured_weight"]
        return [0.0 if value is None else float(value) for value in found]

    @property
    def low(self) -> float:
        """The least weight of the tokens that are measured."""
        return self.quantiles[0]

    @property
    def weight(self) -> float:
        """The median weight of the tokens that are measured."""
        return self.quantiles[1]

    @property
    def high(self) -> float:
        """The greatest weight of the tokens that are measured."""
        return self.quantiles[3]

    @property
    def single(self) -> float:
        """The relative error that may be left in the weight of a measured token, at most."""
        return float(not_null(self.fact, "tolerance")[3]) if self.measured else math.inf

    @property
    def tolerance(self) -> float:
        """The relative error of the median of them all."""
        usual = _middle(self.fact["tolerance"])
        # a loss may weigh tokens by so little that they count as even: their median moves with it
        size = max(abs(self.weight), 1e-300)
        scattered = 0.0 if self.is_uneven else 1.5 * (self.high - self.low) / size
        found = (usual + scattered) / math.sqrt(max(1, self.measured)) + 4 * self.unit
        if not self.has_terms:
            return found
        return max(found, EVEN_WITHIN * max(0.1, 1 / math.sqrt(max(1, self.measured))))

    @property
    def is_uneven(self) -> bool:
        """Return whether measured tokens of this micro-batch have different weights."""
        if not self.measured or self.low <= 0:
            return False
        return int(self.fact["uneven"]) > 0

    @property
    def share_of_uneven(self) -> float:
        """The share of measured tokens whose weight is another one than the median."""
        return int(self.fact["uneven"]) / max(1, self.measured)

    @property
    def by_target(self) -> dict[str, OfTarget]:
        """Return the weights of the ids that are learnt most often."""
        found = self.fact["by_target"]
        return {
            token: OfTarget(int(count), float(weight), float(single), float(apart))
            for token, (count, weight, single, apart) in found.items()
        }

    @property
    def is_steady(self) -> bool | None:
        """Return whether one id has one weight; None where no id is learnt twice."""
        often = [one for one in self.by_target.values() if one.count > 1]
        return all(one.apart <= max(one.single, EVEN_WITHIN) for one in often) if often else None

    @property
    def total(self) -> float | None:
        """The sum of all weights, or None where too few tokens say what it is."""
        if not self.is_uneven and self.measured and self.low > 0:
            return self.weight * self.supervised
        if self.solved == self.supervised and self.measured >= 0.9 * self.solved:
            return float(self.fact["sum"])
        return None

    @property
    def has_terms(self) -> bool:
        """Return whether most tokens are read only with dense terms besides cross entropy."""
        return int(self.fact["odd"]) * 2 > self.solved

    @property
    def terms(self) -> dict[str, float]:
        """Return the loss's terms other than cross entropy, as parts of a token's weight."""
        if not self.has_terms:
            return {}
        names = {"smooth": "label smoothing", "z": "a z-loss", "entropy": "an entropy term"}
        sign = {"smooth": -1}  # it is taken from the target
        parts = {names[n]: sign.get(n, 1) * _middle(self.fact[n]) for n in names}
        least = 1e-2 if self.is_coarse else 1e-5
        # rounding moves a little of one term into the others, with either sign
        known = [abs(part) for part in parts.values() if math.isfinite(part)]
        least = max(least, 3e-3 * max(known, default=0.0))
        return {name: part for name, part in parts.items() if abs(part) > least}

    @property
    def not_next(self) -> int | None:
        """Tokens whose target is not the next input id; None where ids were not seen."""
        found = self.fact["not_next"]
        return None if found is None else int(found)

    @property
    def of_next_row(self) -> int:
        """Tokens whose target is the first id of the batch's next row."""
        return int(self.fact["of_next_row"])

    @property
    def left_out(self) -> int | None:
        """Tokens learnt where the batch's mask has no token; None where it says nothing of that."""
        found = self.fact["left_out"]
        return None if found is None else int(found)

    @property
    def shifted(self) -> dict[int, int]:
        """By distance, the tokens of `not_next` whose target is the id so far ahead."""
        return {int(name): int(n) for name, n in (self.fact["is_plus"] or {}).items()}

    @property
    def ends(self) -> tuple[int, int] | None:
        """End tokens among the inputs and among the targets; None where ids were not seen."""
        found = self.fact["ends"]
        return (int(found["in_inputs"]), int(found["learnt"])) if found else None

    @property
    def ends_behind(self) -> int | None:
        """End tokens right after what is learnt, that are not; None where some were left out."""
        found = (self.fact["ends"] or {"behind": None})["behind"]
        return None if found is None or self.solved < self.supervised else int(found)

    def positions(self, behind: int = 0) -> int:
        """Count the positions of all rows, without the last `behind` of each."""
        shape = [int(size) for size in self.fact["shape"]]
        return shape[0] * (shape[1] - behind) if len(shape) == 2 else 0

    def learnt_of(self, tokens: Mapping[int, str]) -> dict[int, int]:
        """Count how often each of these tokens was learnt."""
        found = self.fact["specials"]
        learnt = {int(token): int(counts["learnt"]) for token, counts in found.items()}
        return {token: n for token, n in learnt.items() if token in tokens and n}

    def given_of(self, tokens: frozenset[int]) -> int:
        """Count how often these tokens were given to the model as text, by its mask."""
        found = self.fact["specials"]
        return sum(
            int(counts["in_inputs"]) for token, counts in found.items() if int(token) in tokens
        )

    @property
    def rows(self) -> tuple[LearntRow, ...]:
        """The learnt tokens of each of the first 64 rows."""
        return tuple(
            LearntRow(
                int(row["n"]),
                int(row["solved"]),
                float(row["sum"]),
                float(row["least"]),
                float(row["greatest"]),
                int(row["positive"]),
                int(row["negative"]),
            )
            for row in self.fact["per_row"]
        )

    @property
    def learning_rows(self) -> tuple[LearntRow, ...]:
        """Rows that have learnt tokens."""
        return tuple(row for row in self.rows if row.tokens)

    @property
    def tokens(self) -> tuple[Tokens, ...]:
        """The learnt tokens of the first rows, one by one."""
        return tuple(
            Tokens(
                int(one["row"]),
                tuple(one["position"]),
                tuple(one["target"]),
                tuple(one["next"]) if one["next"] is not None else None,
                tuple(value or 0.0 for value in one["weight"]),
                tuple(value or 0.0 for value in one["resolved"]),
            )
            for one in self.fact["per_token"]
        )


def _middle(quantiles: Sequence[float | None] | None) -> float:
    """Return a median; infinity where there is none to be had."""
    return float(quantiles[1]) if quantiles and quantiles[1] is not None else math.inf
