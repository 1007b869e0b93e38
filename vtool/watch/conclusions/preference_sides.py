"""The two sides of a pair: which of them is pushed up, how much, and which of its tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.preference_losses import Answer, PreferenceLoss
from vtool.watch.conclusions.preference_reading import Reading, expected_weights, read_pairs
from vtool.watch.conclusions.preference_rows import (
    JudgedBatch,
    judged_batches,
    loss_of,
    no_preference,
    unpaired,
)
from vtool.watch.facts import Facts

SIDES = Rule(
    name="preference-sides",
    code="VT918",
    summary="The two sides of a preference are not judged as such: swapped, with one sign, unequal,"
    " with other tokens than their answers, or with each other's images.",
    why=(
        "The loss still falls where the rejected answer is taught, where each answer's mean is"
        " compared in place of its sum, or where prompts and padding count: what is learnt is"
        " another preference."
    ),
    bad="logps = (per_token * mask).sum(-1) / mask.sum(-1), with loss_type sigmoid",
    good="logps = (per_token * mask).sum(-1)",
    fix=(
        "Look at the collator and at what the loss makes of its batch: the chosen half comes first,"
        " the mask has the answers alone, and each side has the images of its own prompt."
    ),
)
_LEFT = 0.05
"""The least part of a weight, beside that of a copied answer, that is compared."""


def _sides(facts: Facts) -> CheckOutcome:
    if why := no_preference(facts):
        return CheckOutcome(not_run=why, applies=False)
    loss = loss_of(facts)
    assert loss is not None
    every = judged_batches(facts, loss)
    if why := unpaired(facts, loss, every):
        return CheckOutcome(not_run=why, is_needed=True)
    batches = [batch for batch in every if batch.rows]
    looks = (_signs, _sizes, _prompts, _padding, _images, _alike)
    findings = [finding for look in looks if (finding := look(facts, loss, batches)) is not None]
    known = sum(len(_known(loss, batch)) for batch in batches)
    rows = [row for batch in batches for row in batch.rows.values()]
    measured = {"rows": len(rows), "known by the data set": known}
    if findings:
        return CheckOutcome(tuple(findings), looked_at={"rows": len(rows)}, measured=measured)
    if why := _unseen(facts, loss, batches, known):
        return CheckOutcome(not_run=why, measured=measured, is_needed=True)
    looked: dict[Unit, int] = {
        "rows": known,
        "texts": sum(
            batch.prompts[at] is not None and None not in (row.first, row.behind)
            for batch in batches
            for at, row in batch.rows.items()
        ),
        "micro-batches": len(batches),
    }
    noise = max(batch.noise for batch in batches)
    return CheckOutcome(looked_at=looked, noise=noise, measured=measured)


def _known(loss: PreferenceLoss, batch: JudgedBatch) -> frozenset[int]:
    """Return the rows that were measured, and whose side the data set shows."""
    measured = {at for at, row in batch.rows.items() if row.weight is not None}
    if loss.is_paired:  # both sides of a pair, or none
        return frozenset(at for pair in batch.known_pairs if measured >= {*pair} for at in pair)
    return frozenset(at for at in measured if batch.sides[at])


def _unseen(
    facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch], known: int
) -> str | None:
    """Return why nothing has passed, though nothing was found."""
    if loss.unknown and not loss.is_monotone:
        return loss.unknown
    rows = sum(batch.size for batch in batches)
    if known * 2 < rows or not known:
        shown = f"of {known} of {rows} rows alone" if known else "of no row"
        return f"the data set shows {shown} whether it is the good one"
    if any(one.get("pixels") for one in facts.of("rows")):
        return "both sides have the same images; whether they are those of the prompt is not known"
    if wrong := _turned(facts, loss, batches).wrong:
        return f"{wrong} answers are pushed the other way, and whether they should be is not known"
    if loss.is_own and read_pairs(facts, loss, batches).state not in ("right", "even"):
        return "the trainer has a loss of its own: how much each side is to weigh is not known"
    return None


def _due(loss: PreferenceLoss, batch: JudgedBatch) -> Mapping[int, int]:
    """Return the sign that is due to each row of a pair, or to each answer with a label."""
    if not loss.is_paired:
        return {at: batch.sides[at] for at in batch.rows if batch.sides[at]}
    sides = {row: side for pair in batch.pairs for row, side in zip(pair, (1, -1), strict=True)}
    if loss.is_monotone:
        return sides
    due = {
        id(row): 1 if size > 0 else -1
        for row, _, size in expected_weights(loss, loss.smoothings[0], batch)
        if size
    }
    return {at: due[id(row)] for at, row in batch.rows.items() if id(row) in due}


@dataclass(frozen=True, slots=True)
class _Signs:
    """Answers that are pushed the other way than is due."""

    seen: int = 0
    wrong: int = 0
    pairs: int = 0
    lone: int = 0
    """Pairs of which one side alone is pushed the other way."""
    by_layout: bool = False


def _turned(facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]) -> _Signs:
    looked = list(batches)
    if not loss.is_monotone:  # the sign of a weight depends on the margin
        known = not loss.unknown and (
            loss.is_free or read_pairs(facts, loss, batches).state in ("right", "even")
        )
        looked = [one for one in batches if known and (loss.is_free or one.micro.step == 0)]
    found = _Signs()
    for batch in looked:
        alike = batch.alike_rows()
        is_wrong = {
            at: (weight > 0) != (due > 0)
            for at, due in _due(loss, batch).items()
            if at not in alike and at in batch.rows and (weight := batch.rows[at].weight)
        }
        both = [
            is_wrong[a] != is_wrong[b]
            for a, b in (batch.pairs if loss.is_paired else ())
            if a in is_wrong and b in is_wrong
        ]
        found = _Signs(
            found.seen + len(is_wrong),
            found.wrong + sum(is_wrong.values()),
            found.pairs + len(both),
            found.lone + sum(both),
            found.by_layout or (loss.is_paired and not batch.known_pairs),
        )
    return found


def _signs(facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]) -> Diagnostic | None:
    one = _turned(facts, loss, batches)
    if not one.wrong or (loss.is_own and max(one.wrong, 2 * one.lone) < one.seen):
        return None  # a loss of its own may push some answers another way, but not all
    if one.lone:
        return found(
            SIDES, f"both sides of {one.lone} of {one.pairs} pairs are pushed the same way"
        )
    if not one.by_layout:
        good, bad = ("chosen", "rejected") if loss.is_paired else ("desirable", "undesirable")
        message = (
            f"{one.wrong} of {one.seen} answers are pushed the wrong way: those that the data set"
            f" has as {bad} up, those that it has as {good} down"
        )
        return found(SIDES, message)
    message = (
        f"in {one.wrong // 2} of {one.pairs} pairs the first half of the batch, which is chosen in"
        " TRL, is pushed down, and the second one up"
    )
    return found(SIDES, message, severity="warning") if one.wrong == one.seen else None


def _sizes(facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]) -> Diagnostic | None:
    """Look for means in place of sums, the reverse, and sides of different size."""
    if loss.unknown or loss.is_mixed:
        return None
    reading = read_pairs(facts, loss, batches)
    if loss.is_own and not reading.is_certain:
        return None
    severity = {"severity": "warning"} if loss.is_own else {}  # it may be meant
    what = f"{'/'.join(loss.kinds)} is a loss of"
    if reading.state == "by-length":
        message = (
            "each answer weighs the same, whatever its length: the mean of its tokens'"
            f" log-probabilities is judged, and {what} their sum"
        )
        return found(SIDES, message, **severity)
    if reading.state == "by-sum":
        message = (
            "each token weighs the same in answers of all lengths: the sum of log-probabilities is"
            f" judged, and {what} their mean"
        )
        return found(SIDES, message, **severity)
    is_due = loss.is_symmetric and not loss.is_own
    return _unequal(loss, batches, reading) if is_due else None


@dataclass(frozen=True, slots=True)
class _Pair:
    """A token of the chosen side, over one of the rejected side."""

    times: float
    lengths: float
    """Tokens of the chosen side, over those of the other."""
    batch: JudgedBatch

    def is_one(self, power: int) -> bool:
        """Return whether the sides weigh the same, by token or (power 1) by answer."""
        return abs(self.times * self.lengths**power - 1) <= 2 * self.batch.tolerance


def _compared(
    loss: PreferenceLoss, batches: Sequence[JudgedBatch], reading: Reading
) -> Iterator[_Pair]:
    scale = abs(reading.times) if reading.state == "even" else 1.0
    for batch in batches:
        whole = batch.batch(loss)
        if whole is None:
            continue
        for a, b in batch.pairs:
            up, down = batch.rows.get(a), batch.rows.get(b)
            if up is None or down is None or not up.weight or not down.weight:
                continue
            besides = scale * loss.copied(whole, Answer(up.tokens, 0.0)) / batch.passes
            size = abs(up.weight - besides if up.weight > 0 else up.weight)
            if besides and min(size, abs(down.weight)) < _LEFT * abs(up.weight):
                continue  # what is left of it is mostly rounding
            yield _Pair(size / abs(down.weight), up.tokens / down.tokens, batch)


def _unequal(
    loss: PreferenceLoss, batches: Sequence[JudgedBatch], reading: Reading
) -> Diagnostic | None:
    due = 1 if loss.is_by_length else 0
    pairs = list(_compared(loss, batches, reading))
    off = [pair for pair in pairs if not pair.is_one(due)]
    if not off or len(off) * 2 < len(pairs) or loss.method == "orpo":
        return None
    if all(pair.is_one(1 - due) for pair in pairs):
        message = (
            f"the {'sum' if due else 'mean'} of each answer's log-probabilities is judged, and"
            f" {'/'.join(loss.kinds)} is a loss of their {'mean' if due else 'sum'}: tokens of the"
            f" two sides weigh {off[0].times:.4g} to 1"
        )
        return found(SIDES, message)
    if any(pair.batch.is_coarse for pair in off) and all(0.5 < one.times < 2 for one in off):
        return None
    message = (
        f"a token of one side of {len(off)} of {len(pairs)} pairs weighs {off[0].times:.4g} times"
        f" one of the other, of a loss of their difference ({'/'.join(loss.kinds)})"
    )
    return found(SIDES, message, severity="warning")


def _prompts(
    facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]
) -> Diagnostic | None:
    copies_prompts = loss.method == "orpo" or loss.arguments.get("rpo_alpha") is not None
    judged, rows, tokens = 0, 0, 0
    for batch in batches:
        copied = {up for up, _ in batch.pairs} if copies_prompts else ()
        for at, row in batch.rows.items():
            prompt = batch.prompts[at]
            if at in copied or row.first is None or prompt is None:
                continue
            left = prompt - max(row.first, 1)
            rows += 1
            if left > 0:
                judged, tokens = judged + 1, tokens + left
    if not judged:
        return None
    message = (
        f"in {judged} of {rows} rows the prompt is judged with its answer: {tokens} tokens of"
        " prompts have a weight"
    )
    return found(SIDES, message)


def _padding(
    facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]
) -> Diagnostic | None:
    rows = [row for batch in batches for row in batch.rows.values() if (row.behind or 0) > 1]
    if not rows:
        return None
    tokens = sum(row.behind or 0 for row in rows)
    message = f"{tokens} tokens of padding are judged with the answers of {len(rows)} rows"
    return found(SIDES, message)


def _images(
    facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]
) -> Diagnostic | None:
    if not loss.is_paired:
        return None
    given = {
        (int(one["step"]), int(one["rank"]), int(one.get("micro") or 0)): one.get("images")
        for one in facts.of("rows")
        if one.get("images")
    }
    pairs = others = crossed = 0
    one_image: list[str] = []
    for batch in batches:
        micro = batch.micro
        images = given.get((micro.step, micro.rank, micro.index))
        if not images or len(images) != batch.size:
            continue
        half = images[: batch.size // 2]
        if len(half) > 1 and half[0] and len(set(images)) == 1:
            one_image.append(str(half[0]))
        alike = batch.alike_rows()  # one text with two images: the image is what is preferred
        for a, b in batch.pairs:
            if a in alike:
                continue
            pairs += 1
            if images[a] != images[b]:
                others += 1
                crossed += images[b] in half or images[a] in images[len(half) :]
    if others:
        message = f"{others} of {pairs} pairs have other images on one side than on the other"
        if crossed:
            message += f"; in {crossed} one side has those of another pair's other side"
            return found(SIDES, message)
        return found(SIDES, message, severity="warning")
    if len(one_image) == len(batches) and len(set(one_image)) > 1 and _is_shuffled(facts):
        message = (
            f"all pairs of a micro-batch have one image, and each of {len(one_image)} micro-batches"
            " another one, though rows are shuffled: one pair's images are given to all"
        )
        return found(SIDES, message, severity="warning")
    return None


def _is_shuffled(facts: Facts) -> bool:
    return any(
        loader.get("shuffled") for one in facts.of("rows") for loader in one.get("data") or ()
    )


def _alike(facts: Facts, loss: PreferenceLoss, batches: Sequence[JudgedBatch]) -> Diagnostic | None:
    if not loss.is_paired or any(one.get("pixels") for one in facts.of("rows")):
        return None
    pairs = sum(len(batch.known) for batch in batches)
    alike = sum(batch.alike() for batch in batches)
    if not alike or alike * 2 < pairs:
        return None
    message = f"{alike} of {pairs} pairs have the same text on both sides: nothing is preferred"
    return found(SIDES, message, severity="warning")


CHECKS = (WatchCheck(SIDES, "learnt", _sides, {"rows": 2, "texts": 2}, most_noise=0.25),)
