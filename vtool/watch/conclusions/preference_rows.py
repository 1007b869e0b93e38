"""The rows of a preference's micro-batches, by side: what was measured of each, and its pair."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vtool.watch.conclusions.learnt import nothing_read, read_micros
from vtool.watch.conclusions.preference_losses import Answer, Batch, PreferenceLoss
from vtool.watch.conclusions.signs import is_sign_flipped
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact, MicroPass

_MOST_ROWS = 64
"""Rows of a micro-batch that are written one by one."""
ROUNDED, COARSE = 2e-3, 0.3
"""The relative error of a row's median weight, with what a margin's own rounding adds: in float32,
and where something is computed in 16 bits or TF32."""


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """One row of a micro-batch: an answer after its prompt."""

    fact: Fact
    sign: int
    """−1 where a negative weight pushes up: gradients come negated."""

    @property
    def tokens(self) -> int:
        """Count the learnt tokens."""
        return int(self.fact["n"])

    @property
    def weight(self) -> float | None:
        """The median weight of measured tokens; None where there are none."""
        median = self.fact["median"]
        return None if median is None else self.sign * float(median)

    @property
    def least(self) -> float:
        """The weight nearest to 0."""
        return min(abs(float(self.fact[name])) for name in ("least", "greatest"))

    @property
    def most(self) -> float:
        """The weight farthest from 0."""
        return max(abs(float(self.fact[name])) for name in ("least", "greatest"))

    @property
    def lower(self) -> tuple[int, float] | None:
        """Tokens with the smaller of two sizes of weight, and their log-probability."""
        found = self.fact.get("lower")
        return (int(found["n"]), float(found["logp"])) if found else None

    @property
    def answer(self) -> Answer | None:
        """What its loss depends on; None where not every token of it was solved."""
        if int(self.fact["solved"]) < self.tokens or self.fact["logp"] is None:
            return None
        return Answer(self.tokens, float(self.fact["logp"]))

    @property
    def first(self) -> int | None:
        """The place of its first learnt token in its text."""
        found = self.fact["first"]
        return None if found is None else int(found)

    @property
    def behind(self) -> int | None:
        """Count learnt tokens behind the end of its text; None where that is not known."""
        found = self.fact["behind"]
        return None if found is None else int(found)


@dataclass(frozen=True, slots=True)
class JudgedBatch:
    """A micro-batch of pairs, or of single answers."""

    micro: MicroPass
    passes: int
    """Micro-batches of its step on its rank."""
    rows: Mapping[int, JudgedRow]
    size: int
    """Rows, also those of which nothing is learnt."""
    sides: Sequence[int]
    """By the data set, 1 for a chosen answer, −1 for a rejected one, 0 where it is not known."""
    prompts: Sequence[int | None]
    """Lengths of prompts, by the data set."""

    @property
    def tolerance(self) -> float:
        """The relative error of a row's weight."""
        return COARSE if self.is_coarse else ROUNDED

    @property
    def noise(self) -> float:
        """The relative error of the median weight of a row, of which at least one is measured."""
        found = self.micro.fact["tolerance"]
        least = min((int(row.fact["sure"]) for row in self.rows.values()), default=0)
        return float(found[1]) / math.sqrt(max(1, least)) if found else math.inf

    @property
    def is_coarse(self) -> bool:
        """Return whether weights are not known to more than a few parts of a hundred."""
        return self.micro.is_coarse or 4 * self.noise > ROUNDED

    @property
    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the rows of each pair: the first half of a batch is chosen."""
        half = self.size // 2
        for row in range(half):
            yield row, row + half

    def batch(self, loss: PreferenceLoss) -> Batch | None:
        """Return what all weights are divided by; None where there are more rows than were seen."""
        if self.size > _MOST_ROWS:
            return None
        if not loss.is_paired:
            return Batch(self.size, 0)
        chosen = sum(row.tokens for at, row in self.rows.items() if at < self.size // 2)
        return Batch(self.size // 2, chosen)

    @property
    def known(self) -> Sequence[Mapping[str, Any]]:
        """The pairs of its halves, by ids; none where the halves do not begin with the same."""
        return self.micro.fact["pairs"] or ()

    def alike_rows(self) -> frozenset[int]:
        """Return the rows of pairs whose sides have the same ids."""
        return frozenset(int(row) for pair in self.known for row in pair["rows"] if pair["alike"])

    def alike(self) -> int:
        """Count the pairs whose sides have the same ids."""
        return len(self.alike_rows()) // 2

    def prefix(self) -> int:
        """The shortest text that both sides of a pair begin with; 0 where it is not known."""
        return min((int(pair["prefix"]) for pair in self.known), default=0)


def loss_of(facts: Facts) -> PreferenceLoss | None:
    """Return the loss of the trainer that was found, where it is one of preferences."""
    for fact in facts.of("preference"):
        package = str(fact["own"] or "").partition(".")[0]
        framework = "" if package in ("", "trl", "__main__") else package
        return PreferenceLoss(str(fact["method"]), fact["arguments"], framework)
    return None


def no_preference(facts: Facts) -> str | None:
    """Return why nothing can be concluded about a preference."""
    if why := nothing_read(facts):
        return why
    if facts.of("preference"):
        if facts.not_data_parallel:
            return f"ranks share their rows ({facts.not_data_parallel})"
        return None
    if why := facts.skipped("preference"):
        return why
    return "no trainer of preferences is known here (TRL's DPO, KTO, CPO, BCO, ORPO, or one's heir)"


def judged_batches(facts: Facts, loss: PreferenceLoss) -> list[JudgedBatch]:
    """Return the micro-batches whose rows are known, in order."""
    passes: dict[tuple[int, int], int] = {}
    for fact in facts.of("micro"):
        place = int(fact["step"]), int(fact["rank"])
        passes[place] = passes.get(place, 0) + 1
    found = []
    for micro in read_micros(facts):
        shape = list(micro.fact.get("shape") or ())
        if len(shape) != 2 or (loss.is_paired and not micro.fact["pairs"]):
            continue
        sign = -1 if is_sign_flipped(facts, micro.step) else 1
        rows = {int(row["row"]): JudgedRow(row, sign) for row in micro.fact.get("per_row") or ()}
        known = _known(facts, micro)
        size = int(shape[0])
        found.append(
            JudgedBatch(
                micro,
                passes[micro.step, micro.rank],
                rows,
                size,
                [*map(int, known.get("side") or ()), *[0] * size][:size],
                [*(known.get("prompt") or ()), *[None] * size][:size],
            )
        )
    return found


def _known(facts: Facts, micro: MicroPass) -> Mapping[str, Any]:
    for fact in facts.of("preference"):
        if int(fact["step"]) == micro.step and int(fact["rank"]) == micro.rank:
            for one in fact.get("sides") or ():
                if int(one["micro"]) == micro.index:
                    return one  # type: ignore[no-any-return]
    return {}
