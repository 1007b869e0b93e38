"""The measured weights of a preference's rows, over those that the trainer's arguments give."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from vtool.watch.conclusions.preference_losses import Answer, AnswerBatch, PreferenceLoss
from vtool.watch.conclusions.preference_rows import JudgedBatch, JudgedRow
from vtool.watch.facts import Facts


@dataclass(frozen=True, slots=True)
class PairRatio:
    """A row's weight, over the one that arguments give."""

    times: float
    tokens: int
    batch: JudgedBatch
    by_length: bool
    is_up: bool
    is_copied: bool
    """Part of the weight is of a loss that copies chosen answers."""


def expected_weights(
    loss: PreferenceLoss, smoothing: float, batch: JudgedBatch
) -> Iterator[tuple[JudgedRow, float, float]]:
    """Yield the rows of a micro-batch with their weight, and the one that arguments give."""
    whole = batch.batch(loss)
    if whole is None:
        return
    if not loss.is_paired:
        for row in batch.rows.values():
            weight = row.weight
            one = Answer(row.tokens, 0.0)
            pair = loss.weights(smoothing, whole, one, one)
            if weight is not None and pair is not None:
                yield row, weight, pair[0] if weight > 0 else pair[1]
        return
    for pair in batch.pairs:
        up, down = (batch.rows.get(at) for at in pair)
        if loss.is_monotone and ((up and up.weight) or 0) < 0 < ((down and down.weight) or 0):
            up, down = down, up  # a matter of sides
        yield from _of_pair(loss, smoothing, whole, up, down)


def _of_pair(
    loss: PreferenceLoss,
    smoothing: float,
    whole: AnswerBatch,
    up: JudgedRow | None,
    down: JudgedRow | None,
) -> Iterator[tuple[JudgedRow, float, float]]:
    chosen, rejected = (row.answer if row else None for row in (up, down))
    if (loss.is_free or loss.is_by_length) and (chosen is None or rejected is None):
        return
    weights = [row.weight if row else None for row in (up, down)]
    if loss.method == "orpo" and up is not None and chosen is not None:
        if up.lower is None:  # whole rows are copied, of which the answers are judged
            return
        tokens, logp = up.lower
        chosen = Answer(chosen.tokens - tokens, chosen.logp - logp)
        weights[0] = up.most
    none = Answer(1, 0.0)
    pair = loss.weights(smoothing, whole, chosen or none, rejected or none)
    if pair is None:
        return
    for row, weight, due in zip((up, down), weights, pair, strict=True):
        if row is not None and weight is not None:
            yield row, weight, due


def _ratios(
    facts: Facts, loss: PreferenceLoss, smoothing: float, batches: Sequence[JudgedBatch]
) -> list[PairRatio]:
    found = []
    for batch in batches:
        for row, weight, due in expected_weights(loss, smoothing, batch):
            if due:
                times = abs(weight / due) * batch.passes
                copied = (
                    due > 0
                    and loss.is_paired
                    and loss.copied(batch.batch(loss) or AnswerBatch(1, 1), Answer(row.tokens, 0.0))
                )
                found.append(
                    PairRatio(times, row.tokens, batch, loss.is_by_length, due > 0, bool(copied))
                )
    return found


def are_all(ratios: Sequence[PairRatio], times: float) -> bool:
    """Return whether all ratios are one number."""
    return all(abs(one.times / times - 1) <= one.batch.tolerance for one in ratios)


def _even(ratios: Sequence[PairRatio], power: int = 0) -> bool:
    """Return whether all ratios are equal, with each answer's tokens to some power."""
    values = [one.times * one.tokens**power for one in ratios]
    middle = median(values)
    return middle != 0 and all(
        abs(value / middle - 1) <= one.batch.tolerance
        for value, one in zip(values, ratios, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """The weights of pairs whose due size is known, against it."""

    ratios: tuple[PairRatio, ...]
    """Ratios of the rows, with the smoothing that fits best."""
    smoothing: float
    state: str
    """`right`, `even` (all the same times what is due), `by-length`, `by-sum`, or `apart`."""

    @property
    def times(self) -> float:
        """The weights, over those that are due."""
        return median(one.times for one in self.ratios)

    @property
    def is_certain(self) -> bool:
        """Return whether margins are known: those of the policy alone, or of its reference."""
        return all(one.batch.is_at_reference or one.batch.is_free for one in self.ratios)


def read_pairs(facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]) -> Reading:
    """Hold weights against what is due: of the first step alone, where there is a reference."""
    exact = list(batches) if loss.is_free else [b for b in batches if b.micro.step == 0]
    best = Reading((), 0.0, "none")
    order = ("right", "even", "by-length", "by-sum", "apart", "none")
    for smoothing in loss.smoothings:
        ratios = _ratios(facts, loss, smoothing, exact)
        if not ratios:
            continue
        reading = Reading(tuple(ratios), smoothing, "apart")
        reading = replace(reading, state=_state(loss, reading, facts.world))
        if order.index(reading.state) < order.index(best.state):
            best = reading
    return best


def _state(loss: PreferenceLoss, reading: Reading, world: int) -> str:
    ratios, first = reading.ratios, reading.ratios[0].batch
    if are_all(ratios, 1.0):
        return "right"
    lengths = {one.tokens for one in ratios}
    counts = {count for count, _ in divisors(loss, first, world)}
    copied = any(one.is_copied for one in ratios)
    fine = reading.is_certain or not any(one.batch.is_coarse for one in ratios)
    by_sum = ratios[0].by_length
    power = -1 if by_sum else 1
    if len(lengths) == 1 and not copied and fine and lengths.isdisjoint({1} | counts):
        near = all(abs(one.times * one.tokens**power - 1) <= one.batch.tolerance for one in ratios)
        if near:
            return "by-sum" if by_sum else "by-length"
    # a single pair is always even: its margin may be any, where the policy is not its reference
    if _even(ratios) and (reading.is_certain or len(ratios) > 2):
        return "even"
    if len(lengths) > 1 and not copied and fine and _even(ratios, power):
        return "by-sum" if by_sum else "by-length"
    return "apart"


def divisors(loss: PreferenceLoss, batch: JudgedBatch, world: int) -> list[tuple[int, str]]:
    """Return the counts that a loss may be divided by, with their names."""
    passes = batch.passes
    pairs = batch.size // (2 if loss.is_paired else 1)
    what = "pairs" if loss.is_paired else "rows"
    return [
        (count, name)
        for count, name in (
            (passes, "micro-batches"),
            (world, "ranks"),
            (passes * world if world > 1 else 1, "passes"),
            (pairs, f"{what} in each micro-batch"),
        )
        if count > 1
    ]
