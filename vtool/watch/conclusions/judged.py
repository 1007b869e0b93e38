"""Preference and policy losses: what the signs and sizes of weights say."""

from vtool.diagnostics import Rule
from vtool.watch.conclusions.check import CheckOutcome, WatchCheck, found
from vtool.watch.conclusions.learnt import nothing_read, read_micros
from vtool.watch.conclusions.signs import all_negative, is_sign_flipped
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import MicroPass

JUDGED = Rule(
    name="rows-judged",
    code="VT908",
    summary="Rows are pushed up and down, by a preference or an advantage; how is said.",
    why=(
        "DPO, GRPO and their kin differ in how they divide: by tokens of an answer, of the batch,"
        " by a constant. The names of settings do not always say which is used."
    ),
    bad="loss_type=grpo, read as a mean over all tokens",
    good="the normalization that the gradients show",
    fix="Nothing: it is what the settings say, or is not.",
    severity="note",
)


_ROWS = 6
"""Rows of a rank, over all steps, whose equal sign is no coincidence."""


def _even(values: list[float], tolerance: float) -> bool:
    low, high = min(values), max(values)
    return low > 0 and high / low - 1 <= tolerance


def _normalization(micros: list[MicroPass]) -> str:
    """Return the kind of normalization: which tokens or answers weigh the same in a step."""
    rows = [(micro, row) for micro in micros for row in micro.rows if row.solved]
    tolerance = 2 * max(micro.single for micro in micros)
    inside = [
        _even(sorted((abs(row.low), abs(row.high))), tolerance)
        for _, row in rows
        if row.low * row.high > 0
    ]
    if not inside or not all(inside):
        return "tokens of one row have different weights"
    sizes = [abs(row.middle) for _, row in rows]
    if _even(sizes, tolerance):
        return "all tokens weigh the same: a sum over each answer, or a mean over all tokens"
    by_length = [abs(row.middle) * row.tokens for _, row in rows]
    if _even(by_length, tolerance):
        return "each answer weighs the same: a mean over the tokens of each"
    each = [[abs(row.middle) for row in micro.learning_rows if row.solved] for micro in micros]
    if len(each) > 1 and all(_even(sizes, tolerance) for sizes in each if sizes):
        return "tokens of one micro-batch weigh the same, those of another do not"
    return "rows weigh differently, by margins or advantages: one reading cannot show by which"


def _turned_ranks(micros: list[MicroPass]) -> list[int]:
    """Return the ranks whose rows are all pushed down, where those of all others are pushed up.

    Pairs of a preference, and answers to one prompt, have both signs on a rank. One sign in so many
    rows is no coincidence.
    """
    signs: dict[int, list[bool]] = {}
    for micro in micros:
        rows = [row for row in micro.learning_rows if row.solved]
        if any(row.positive and row.negative for row in rows):
            return []
        signs.setdefault(micro.rank, []).extend(row.negative > 0 for row in rows)
    known = [each for each in signs.values() if len(each) >= _ROWS]
    if len(known) < len(signs) or any(len(set(each)) > 1 for each in known):
        return []
    down = [rank for rank, each in signs.items() if each[0]]
    return sorted(down) if len(down) < len(signs) else []


def _judged(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    tokens = sum(micro.measured for micro in read_micros(facts))
    if not facts.is_judged:
        return CheckOutcome(looked_at={"tokens": tokens})
    if any(one.severity == "error" for one in all_negative(facts).findings):
        return CheckOutcome(not_run="every token is made less likely, by a mean of them all")
    micros = [micro for micro in read_micros(facts) if micro.learning_rows]
    up = sum(row.positive > row.negative for micro in micros for row in micro.learning_rows)
    down = sum(row.negative > row.positive for micro in micros for row in micro.learning_rows)
    if micros and is_sign_flipped(facts, micros[0].step):
        up, down = down, up
    first = [micro for micro in micros if micro.step == micros[0].step] if micros else []
    how = _normalization(first) if first else "rows were not distinguished"
    message = f"{up} rows are pushed up, {down} down; {how}"
    if turned := _turned_ranks(micros):
        message += (
            f"; a row's sign is that of its rank, in {len(micros)} micro-batches: of rank"
            f" {', '.join(map(str, turned))} every row has the other one"
        )
        help = "look at what differs between ranks: a loss that is negated, data split by its label"
        return CheckOutcome((found(JUDGED, message, help=help, severity="warning"),))
    return CheckOutcome(
        (found(JUDGED, message),),
        looked_at={"tokens": tokens, "rows": up + down},
        measured={"up": up, "down": down, "weights": how},
    )


CHECKS = (WatchCheck(JUDGED, "learnt", _judged, {"tokens": 1}),)
