"""The rows of a preference's micro-batches, by side: what was measured of each, and its pair."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vtool.watch.conclusions.learnt import nothing_read, read_micros
from vtool.watch.conclusions.preference_losses import Answer, AnswerBatch, PreferenceLoss
from vtool.watch.conclusions.signs import is_sign_flipped
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact, MicroPass

_MOST_ROWS = 64
"""Rows of a micro-batch that are written one by one."""
ROUNDED, COARSE, COARSE_MARGIN = 2e-3, 0.1, 0.3
"""The relative error of a row's median weight, with what a margin's own rounding adds: in float32,
where something is computed in 16 bits or TF32, and there where the margin is not 0."""


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
        """The tokens that its loss depends on; None where not every one was solved."""
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
    partners: Sequence[int | None]
    """The row with the other answer of a pair, by the data set."""
    is_at_reference: bool
    """The policy is known to be the reference still, and nothing is dropped out."""
    is_stock: bool
    """The loss is made of the batch by TRL's own methods: the first half of a batch is chosen."""
    is_free: bool
    """The loss has no reference."""

    @property
    def tolerance(self) -> float:
        """The relative error of a row's weight."""
        if not self.is_coarse:
            return ROUNDED
        return COARSE_MARGIN if self.is_free or self.micro.step > 0 else COARSE

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
    def known_pairs(self) -> Sequence[tuple[int, int]]:
        """The rows of pairs that the data set shows: the chosen one, and the rejected one."""
        return [
            (row, other)
            for row, other in enumerate(self.partners)
            if other is not None and self.sides[row] > 0
        ]

    @property
    def pairs(self) -> Sequence[tuple[int, int]]:
        """The pairs that the data set shows, or else those that TRL's own loss makes of a batch."""
        if self.is_cut:
            return ()
        return self.known_pairs or (self._by_layout() if self.is_stock else ())

    def _by_layout(self) -> Sequence[tuple[int, int]]:
        """Return the pairs of both halves that share their prompts, and more than all rows do."""
        half = self.size // 2
        shared = self.micro.fact["pairs"] or ()
        if not all(self._is_pair(int(one["rows"][0]), int(one["prefix"])) for one in shared):
            return ()
        if len(shared) > 1 and all(int(one["prefix"]) <= int(one["all"]) for one in shared):
            return ()
        return [(row, row + half) for row in range(half)] if shared else ()

    def _is_pair(self, row: int, prefix: int) -> bool:
        begin = [self.rows[at].first for at in (row, row + self.size // 2) if at in self.rows]
        return prefix > 1 and all(first is not None and first <= prefix for first in begin)

    @property
    def is_cut(self) -> bool:
        """Return whether there are more rows than were written one by one."""
        return self.size > _MOST_ROWS

    def batch(self, loss: PreferenceLoss) -> AnswerBatch | None:
        """Return the counts that weights are divided by; None where not all rows are known."""
        if self.is_cut:
            return None
        if not loss.is_paired:
            return AnswerBatch(self.size, 0)
        tokens = [self.rows[up].tokens if up in self.rows else 0 for up, _ in self.pairs]
        if len(tokens) * 2 != self.size and loss.copied(AnswerBatch(1, 1), Answer(1, 0.0)):
            return None  # what is copied is divided by the tokens of all chosen answers
        return AnswerBatch(self.size // 2, sum(tokens))

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


def loss_of(facts: Facts) -> PreferenceLoss | None:
    """Return the loss of the trainer that was found, where it is one of preferences."""
    for fact in facts.of("preference"):
        return _loss_at(fact)
    return None


def _loss_at(fact: Fact) -> PreferenceLoss:
    arguments = {**fact["arguments"], **fact["changed"]}
    return PreferenceLoss(str(fact["method"]), arguments, is_own=bool([*fact["overridden"]]))


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
    looks = {(int(one["step"]), int(one["rank"])): one for one in facts.of("preference")}
    found = []
    for micro in read_micros(facts):
        shape = list(micro.fact.get("shape") or ())
        look = looks.get((micro.step, micro.rank))
        if len(shape) != 2 or look is None or _loss_at(look) != loss:  # β may have a schedule
            continue
        sign = -1 if is_sign_flipped(facts, micro.step) else 1
        known: Mapping[str, Any] = next(
            (one for one in look["sides"] if int(one["micro"]) == micro.index), {}
        )
        size = int(shape[0])
        none = [None] * size
        batch = JudgedBatch(
            micro,
            passes[micro.step, micro.rank],
            {int(row["row"]): JudgedRow(row, sign) for row in micro.fact.get("per_row") or ()},
            size,
            [*map(int, known.get("side") or ()), *[0] * size][:size],
            [*(known.get("prompt") or ()), *none][:size],
            [*(known.get("partner") or ()), *none][:size],
            is_at_reference=_is_at_reference(look["reference"], micro),
            is_stock=not loss.is_own,
            is_free=loss.is_free,
        )
        if batch.pairs or batch.is_cut or not loss.is_paired:
            found.append(batch)
    return found


def _is_at_reference(reference: Mapping[str, Any], micro: MicroPass) -> bool:
    if micro.step > 0 or micro.fact["dropout"] == "on":
        return False
    twin = micro.fact["reference"]
    if twin and twin["apart"] == 0 and reference["kind"] != "model":
        return True
    return 0 < int(reference["compared"]) == int(reference["equal"])


def unpaired(facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]) -> str | None:
    """Return why the rows of a step are no pairs that are known, or not its micro-batches."""
    if not any(batch.rows for batch in batches):
        return "no pairs are known: neither the data set nor their prompts tell rows apart"
    if size := max((batch.size for batch in batches if batch.is_cut), default=0):
        return f"a micro-batch has {size} rows, and only {_MOST_ROWS} of them are written"
    asked = int(loss.number("gradient_accumulation_steps", 0))
    if not asked:
        return "the trainer's arguments do not say how many micro-batches a step has"
    most = max(batch.passes for batch in batches)
    if most > asked:
        return (
            f"a step has {most} passes, and {asked} micro-batches: sides have passes of their own"
        )
    return None
