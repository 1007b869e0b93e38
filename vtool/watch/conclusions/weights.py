"""The weight of each learnt token, against the others of its step.

Micro-batches are compared with each other first: where a loss weighs tokens by their id, one id
has one weight, so that ids which several micro-batches learn show how these differ. What differs
within a micro-batch is told beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.learnt import CERTAIN_OF_EVERY, nothing_read
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import EVEN_WITHIN, LearntRow, MicroPass

DIFFER = Rule(
    name="token-weights-differ",
    code="VT906",
    summary="Tokens of one optimizer step weigh more than others, by where they happen to be.",
    why=(
        "A mean over each micro-batch or rank, and then over these, weighs a token by how many"
        " others share its mean: short answers count more, and the result depends on batch size,"
        " accumulation and ranks (transformers#34191, #34242, #37766, LLaMA-Factory#7443)."
    ),
    bad="loss = cross_entropy(...) / gradient_accumulation_steps, over micro-batches of any size",
    good="loss = cross_entropy(..., reduction='sum') / tokens_of_the_step",
    fix=(
        "Divide the sum of each micro-batch's loss by the tokens of the whole step, over all ranks."
        " Where the trainer cannot, use one micro-batch a step: the full batch size and"
        " gradient_accumulation_steps=1."
    ),
)
_MICRO_HELP = (
    "the loss is averaged over each micro-batch by itself. In a loop of your own:"
    " cross_entropy(..., reduction='sum') / tokens of the whole step. In transformers,"
    " num_items_in_batch does that, where the model's class takes it; else"
    " gradient_accumulation_steps=1 with a larger batch avoids it"
)
_RANK_HELP = (
    "each rank divides by its own tokens. average_tokens_across_devices=True avoids it in"
    " transformers; in a loop of your own, all-reduce the number of tokens first"
)
_POSITIONS_HELP = (
    "the loss is averaged over every position, learnt or not: take the mean with"
    " ignore_index=-100, or divide its sum by the learnt tokens of the whole step"
)


_OF_SUMS = 0.05
"""The relative error of sums that may be compared."""
_FEW = 1 / 3
"""The share of a micro-batch's tokens that may have other weights than its median token."""


def micros_by_step(facts: Facts) -> dict[int, list[MicroPass]]:
    """Return the micro-batches of each step of which every one that learns something is read."""
    steps: dict[int, list[MicroPass]] = {}
    for micro in facts.micros:
        if micro.supervised:
            steps.setdefault(micro.step, []).append(micro)
    return {
        step: micros
        for step, micros in sorted(steps.items())
        if all(micro.is_read for micro in micros)
    }


def not_whole(facts: Facts) -> str:
    """Return why no step could be compared, though some of what is learnt was read."""
    return nothing_read(facts) or "of each step a micro-batch could not be read"


def _spread(pairs: Sequence[tuple[float, float]]) -> float:
    """Return how many times the largest value is the smallest, or 1 within their tolerances."""
    low, high = min(pairs), max(pairs)
    if low[0] <= 0 or not high[0] / low[0] - 1 > low[1] + high[1]:
        return 1.0
    return high[0] / low[0]


@dataclass(frozen=True, slots=True)
class _Relative:
    """The weights of a micro-batch, as times those of another one of its step."""

    micro: MicroPass
    times: float
    tolerance: float


def _relative(micro: MicroPass, to: MicroPass) -> _Relative | None:
    """Return how many times the weights of one micro-batch are another's.

    None where weights differ within them by something else than the id, so that the share of each
    kind of token may explain any difference.
    """
    medians = _Relative(micro, micro.weight / to.weight, micro.tolerance + to.tolerance)
    if not micro.is_uneven and not to.is_uneven:
        return medians
    if (by_id := _by_id(micro, to)) is not None:
        return by_id
    if all(one.is_steady is not False and one.share_of_uneven <= _FEW for one in (micro, to)):
        return medians
    apart = micro.low > to.high or to.low > micro.high
    return medians if apart else None


def _by_id(micro: MicroPass, to: MicroPass) -> _Relative | None:
    """Compare two micro-batches by the ids that both learn, if one id has one weight in each."""
    if False in (micro.is_steady, to.is_steady):
        return None
    mine, theirs = micro.by_target, to.by_target
    common = [token for token in mine if token in theirs and theirs[token].weight > 0]
    often = [token for token in common if mine[token].count > 1 and theirs[token].count > 1]
    if len(common) < 2 and not often:
        return None
    ratios = [mine[token].weight / theirs[token].weight for token in common]
    allowed = [mine[token].tolerance + theirs[token].tolerance for token in common]
    middle = median(ratios)
    fits = [abs(ratio / middle - 1) <= off for ratio, off in zip(ratios, allowed, strict=True)]
    return _Relative(micro, middle, median(allowed)) if 2 * sum(fits) > len(fits) else None


def _by_row(micros: Sequence[MicroPass]) -> bool:
    """Return whether weights are 1/n of a row's n tokens, where rows and micro-batches differ."""
    rows = [(micro, row) for micro in micros for row in micro.learning_rows]
    if any(row.low <= 0 or row.solved < row.tokens for _, row in rows) or len(rows) < 2:
        return False
    # where rows of a micro-batch are as long as each other, 1/n of a row is 1/n of the micro-batch
    if not any(_rows_differ(micro) for micro in micros):
        return False
    return _spread([(row.total, _of_row(micro, row)) for micro, row in rows]) == 1


def _of_row(micro: MicroPass, row: LearntRow) -> float:
    """Return the relative error of the sum of a row's weights."""
    return micro.single / math.sqrt(row.tokens) + 4 * micro.unit


def _rows_differ(micro: MicroPass) -> bool:
    """Return whether the mean weights of rows of other lengths differ."""
    rows = micro.learning_rows
    if len({row.tokens for row in rows}) < 2:
        return False
    return _spread([(row.middle, _of_row(micro, row)) for row in rows]) != 1


def _explained(scaled: Sequence[_Relative]) -> tuple[str, str] | None:
    """Return by what rule weights differ between micro-batches or ranks, and what avoids it."""
    micros = [one.micro for one in scaled]
    # whole rows have a label more than they have targets: nothing predicts their first token
    for firsts, counted in ((0, "learnt tokens"), (1, "labels, first tokens among them,")):
        counts = [micro.supervised + firsts * len(micro.learning_rows) for micro in micros]
        if _is_one_over(scaled, counts) or (not firsts and _same_sums(micros)):
            return f"as 1/n of the n {counted} of its own micro-batch", _MICRO_HELP
        ranks = {micro.rank: 0 for micro in micros}
        for micro, count in zip(micros, counts, strict=True):
            ranks[micro.rank] += count
        of_rank = _is_one_over(scaled, [ranks[micro.rank] for micro in micros])
        if len(ranks) > 1 and (of_rank or (not firsts and _same_sums_of_ranks(scaled))):
            return f"as 1/n of the n {counted} of its own rank", _RANK_HELP
    for behind in (0, 1):  # of each row the last position has no target: some leave it out
        if _is_one_over(scaled, [micro.positions(behind) for micro in micros]):
            how = "as 1/n of the n positions of its own micro-batch, prompts and padding too"
            return how, _POSITIONS_HELP
    return None


def _is_one_over(scaled: Sequence[_Relative], counts: Sequence[int]) -> bool:
    """Return whether weights of each micro-batch are in proportion to 1/n, of a count n each."""
    pairs = zip(scaled, counts, strict=True)
    return all(counts) and _spread([(one.times * n, one.tolerance) for one, n in pairs]) == 1


def _same_sums(micros: Sequence[MicroPass]) -> bool:
    """Return whether the weights of each micro-batch have one sum, which class weights are in."""
    sums = [(micro.total, micro.tolerance) for micro in micros]
    known = [(total, off) for total, off in sums if total and total > 0 and off <= _OF_SUMS]
    return len(known) == len(sums) and _spread(known) == 1 and not _nearly_by_row(micros)


def _nearly_by_row(micros: Sequence[MicroPass]) -> bool:
    """Return whether in a micro-batch sums of rows are far more alike than their lengths are.

    A mean over rows that weighs classes too is no mean of each row any more; where batches have as
    many rows as each other, their sums are alike as well.
    """
    for micro in micros:
        rows = [row for row in micro.learning_rows if row.low > 0]
        if len({row.tokens for row in rows}) < 2:
            continue
        sums, lengths = [row.total for row in rows], [row.tokens for row in rows]
        if 2 * math.log(max(sums) / min(sums)) < math.log(max(lengths) / min(lengths)):
            return True
    return False


def _same_sums_of_ranks(scaled: Sequence[_Relative]) -> bool:
    """Return whether the weights of each rank have one sum, and are of one size within it."""
    ranks: dict[int, list[_Relative]] = {}
    for one in scaled:
        ranks.setdefault(one.micro.rank, []).append(one)
    sums = []
    for mine in ranks.values():
        totals = [one.micro.total for one in mine]
        known = [total for total in totals if total is not None]
        if len(known) < len(totals) or _spread([(one.times, one.tolerance) for one in mine]) != 1:
            return False
        sums.append((sum(known), max(one.micro.tolerance for one in mine)))
    return all(total > 0 for total, _ in sums) and _spread(sums) == 1


def is_even_by_a_rule(micros: Sequence[MicroPass]) -> bool:
    """Return whether weights are those of a mean: over tokens, micro-batches, ranks, or rows."""
    if any(micro.is_uneven for micro in micros):
        return _by_row(micros)
    scaled = [_Relative(micro, micro.weight, micro.tolerance) for micro in micros]
    return is_even(micros) or _explained(scaled) is not None or _by_row(micros)


def is_even(micros: Sequence[MicroPass]) -> bool:
    """Return whether all micro-batches have tokens of one median weight."""
    return _spread([(micro.weight, micro.tolerance) for micro in micros]) == 1


def _certain(
    scaled: Sequence[_Relative], micros: Sequence[MicroPass], ratio: float
) -> tuple[str, str] | None:
    """Return the rule, where numbers are fine enough to choose between rules.

    Where tokens of a micro-batch differ too, coarse numbers fit several.
    """
    noise = 2 * max(one.tolerance for one in scaled)
    uneven = any(micro.is_uneven for micro in micros)
    if uneven and (noise >= ratio - 1 or _nearly_by_row(micros)):
        return None
    return _explained(scaled)


def _scattered(one: _Relative) -> _Relative:
    """Return how a micro-batch compares, if weights within it move its median as well."""
    micro = one.micro
    if not micro.is_uneven or micro.weight <= 0:
        return one
    scatter = 1.5 * (micro.high - micro.low) / micro.weight / math.sqrt(micro.measured)
    return replace(one, tolerance=one.tolerance + scatter)


def _compared(micros: Sequence[MicroPass]) -> list[_Relative]:
    """Return each micro-batch that can be compared with the one that has most tokens."""
    reference = max(micros, key=lambda micro: (not micro.is_uneven, micro.measured))
    scaled = [_relative(micro, reference) for micro in micros if micro is not reference]
    own = _Relative(reference, 1.0, reference.tolerance)
    return [own, *(one for one in scaled if one is not None)]


def _differ_in_step(step: int, micros: Sequence[MicroPass]) -> Mapping[str, Diagnostic]:
    """Return the findings about micro-batches, and about tokens within one."""
    where = f"in step {step + 1}"
    if _by_row(micros):
        message = (
            f"{where} each token weighs 1/n of the n learnt tokens of its row: every row counts the"
            " same, whatever its length"
        )
        help = "nothing, if a mean over rows is meant; otherwise divide by the tokens of the step"
        return {"within": found(DIFFER, message, help=help, severity="note")}
    findings = {}
    if between := _between(where, micros):
        findings["between"] = between
    if within := next((micro for micro in micros if micro.is_uneven), None):
        message = (
            f"{where} tokens of one micro-batch have weights from {within.low:.4g} to"
            f" {within.high:.4g}: the loss weighs tokens, or rows"
        )
        note = found(DIFFER, message, help="nothing, if that is meant", severity="note")
        findings["within"] = note
    return findings


def _between(where: str, micros: Sequence[MicroPass]) -> Diagnostic | None:
    scaled = _compared(micros)
    ratio = _spread([(one.times, one.tolerance) for one in scaled])
    if ratio == 1:
        return None
    counts = f"{len(micros)} micro-batches"
    ranks = len({micro.rank for micro in micros})
    counts += f" on {ranks} ranks" if ranks > 1 else ""
    summary = f"{where} some tokens weigh {ratio:.4f} times others, over {counts}"
    uneven = any(micro.is_uneven for micro in micros)
    if explained := _certain(scaled, micros, ratio) or _certain(
        [_scattered(one) for one in scaled], micros, ratio
    ):
        by, help = explained
        return found(DIFFER, f"{summary}: each weighs {by}", help=help)
    message = f"{summary}; by no rule that is known here"
    if ratio - 1 <= EVEN_WITHIN:
        return None
    return found(DIFFER, message, severity="note" if uneven else "warning")


def _differ(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    if facts.is_judged:
        why = f"{facts.judged}: rows are judged, not copied"
        return CheckOutcome(not_run=why, applies=False)
    steps = micros_by_step(facts)
    known = {
        step: micros for step, micros in steps.items() if all(micro.measured for micro in micros)
    }
    if not known:
        return CheckOutcome(not_run=CERTAIN_OF_EVERY if steps else not_whole(facts))
    told: dict[str, Diagnostic] = {}
    for step, micros in known.items():
        for kind, one in _differ_in_step(step, micros).items():
            if kind not in told or _gravity(one) < _gravity(told[kind]):
                told[kind] = one
    looked_at: dict[Unit, int] = {
        "steps": len(known),
        "micro-batches": sum(map(len, known.values())),
        "tokens": sum(micro.measured for micros in known.values() for micro in micros),
    }
    noise = min(max(micro.tolerance for micro in micros) for micros in known.values())
    compared = {
        step: len(micros if _by_row(micros) else _compared(micros))
        for step, micros in known.items()
    }
    if "between" in told and told["between"].severity == "note":
        why = "tokens weigh differently within micro-batches and between them: no rule is certain"
        return CheckOutcome(tuple(told.values()), not_run=why)
    if not told.get("between") and all(compared[step] < len(known[step]) for step in known):
        why = "tokens of each micro-batch weigh differently, and by no rule that can be separated"
        return CheckOutcome(tuple(told.values()), not_run=why)
    findings = sorted(told.values(), key=_gravity)
    return CheckOutcome(tuple(findings), looked_at=looked_at, noise=noise)


def _gravity(finding: Diagnostic) -> int:
    return ("error", "warning", "note").index(str(finding.severity))


CHECKS = (
    WatchCheck(
        DIFFER,
        "learnt",
        _differ,
        {"steps": 1, "micro-batches": 1, "tokens": 1},
        most_noise=0.25,
    ),
)
