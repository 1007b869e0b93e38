"""Ranks, micro-batches and rows of a batch from which nothing is learnt, step after step."""

from collections.abc import Sequence

from vtool.diagnostics import Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.learnt import nothing_read
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact

SILENT = Rule(
    name="rank-learns-nothing",
    code="VT916",
    summary="Of all that a rank, or one place of each batch, is shown, nothing is learnt.",
    why=(
        "Its rows are computed and thrown away: labels that are all -100 on one rank, a loss that"
        " is multiplied by a mask of zeros, a shard of the data without answers."
    ),
    bad="labels masked by a list of row numbers that only rank 0 has",
    good="some learnt tokens in what each rank is shown",
    fix="Look at the labels that this rank, or this place of a batch, is given, and at its loss.",
    severity="warning",
)
_PASSES = 6
"""So many without a learnt token are no coincidence, where others have some."""
_WITHOUT = "no position has a gradient"


def _silent(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    if facts.not_data_parallel:
        return CheckOutcome(not_run=f"ranks share their rows ({facts.not_data_parallel})")
    passes = [one for one in facts.of("micro") if one["why"] in (None, _WITHOUT)]
    steps = {int(one["step"]) for one in passes}
    unseen = set(facts.ranks) - {int(one["rank"]) for one in passes}
    if len(steps) < 2 or unseen:
        why = f"of rank {min(unseen)} no pass was read" if unseen else "it takes two steps"
        return CheckOutcome(not_run=why)
    for key, name in (("rank", "of rank {}"), ("index", "of micro-batch {} of each step")):
        for which in sorted({int(one[key]) for one in passes}):
            mine = [one for one in passes if int(one[key]) == which]
            if {int(one["step"]) for one in mine} != steps or any(not one["why"] for one in mine):
                continue
            place = name.format(which if key == "rank" else which + 1)
            message = f"{place} nothing is learnt in {len(steps)} steps, {len(mine)} passes"
            certain = key == "rank" and len(mine) >= _PASSES
            help = None if certain else "nothing, if few of the rows have anything to learn"
            severity = "warning" if certain else "note"
            return CheckOutcome((found(SILENT, message, help=help, severity=severity),))
    rows = _silent_rows(passes)
    if rows and len(steps) > 2:
        numbers = ", ".join(str(row + 1) for row in rows[:4])
        message = f"of row {numbers} of each batch nothing is learnt, in {len(passes)} passes"
        certain = len(passes) >= _PASSES and not facts.is_judged
        help = None if certain else "nothing, if few of the rows have anything to learn"
        severity = "warning" if certain else "note"
        return CheckOutcome((found(SILENT, message, help=help, severity=severity),))
    looked_at: dict[Unit, int] = {"steps": len(steps), "passes": len(passes)}
    return CheckOutcome(looked_at=looked_at, measured={"passes": len(passes)})


def _silent_rows(passes: Sequence[Fact]) -> list[int]:
    """Return the places in a batch from which no row is learnt in any pass, where others are."""
    count = min(64, *(int(one["shape"][0]) for one in passes))
    learning = {int(row["row"]) for one in passes if not one["why"] for row in one["per_row"]}
    return sorted(set(range(count)) - learning) if learning else []


CHECKS = (WatchCheck(SILENT, "learnt", _silent, {"steps": 2, "passes": 2}),)
