"""The rows that the model was shown, over the whole run."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.again import same_batches
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.shared_rows import SHARES_HELP, overlapping_shares
from vtool.watch.facts import Facts

UNEVEN = Rule(
    name="rows-seen-unevenly",
    code="VT951",
    summary="Over whole epochs some rows were seen more often than others, or not at all.",
    why=(
        "A sampler that never gets the epoch, a loader that starts again after a resume, workers"
        " that all read the same shard: the run trains on a part of its data"
        " (DALLE-pytorch#230, trl#4554)."
    ),
    bad="a data set of 1,000 rows of which 600 were seen, some of them three times",
    good="each row once an epoch",
    fix=(
        "Look at the sampler, at set_epoch and at how workers split the data. If the same text is"
        " in the data several times, or rows are drawn on purpose, nothing is wrong."
    ),
    severity="warning",
)
SAME_ON_RANKS = Rule(
    name="ranks-see-same-rows",
    code="VT952",
    summary="Ranks that should share the data are shown the same rows.",
    why=(
        "All ranks but one compute what another has computed: the run costs N times as much as it"
        " learns, and each row is seen N times an epoch."
    ),
    bad="DataLoader(rows, shuffle=True) with the same seed on each rank",
    good="DataLoader(rows, sampler=DistributedSampler(rows))",
    fix="Give each rank its own rows: DistributedSampler, or accelerate's prepare(loader).",
)
ONE_ORDER = Rule(
    name="epochs-in-one-order",
    code="VT953",
    summary="Rows are shuffled, and each epoch has them in the same order.",
    why=(
        "The sampler draws its order from a seed and the epoch, and nobody gives it the epoch: the"
        " same rows are together in each batch, in the same order, as often as the run sees them"
        " (accelerate#2157, #3556)."
    ),
    bad="DistributedSampler(rows, shuffle=True), without set_epoch",
    good="sampler.set_epoch(epoch) before each epoch",
    fix=(
        "Call set_epoch(epoch) of the sampler, or of the prepared loader, before each epoch; do not"
        " seed torch anew in each. If one order is meant, nothing is wrong."
    ),
    severity="warning",
)
_AGAIN = "the same batches come again and again: same-batch-every-step"
_LEAST_ROWS = 8
"""Rows that two random orders do not have the same by chance: 1 in 8! = 40,320."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The count of how often each row was seen."""

    times: Counter[str]
    data: int | None
    """Rows of the data set, if one loader is known."""
    left_out: int
    """Rows that an epoch may leave out, because its last batch is not full."""
    copies: int | None = None
    """Rows of the data set that are copies of others, where it was small enough to look."""
    by_weights: bool = False
    """A WeightedRandomSampler draws them: unevenly, and on purpose."""
    fills_up: bool = False
    """Ranks cannot have as many batches each, unless some rows are shown twice."""

    @property
    def seen(self) -> int:
        """Rows that were seen, each as often as it was."""
        return sum(self.times.values())

    @property
    def not_compared(self) -> str:
        """The reason why rows cannot be compared with the data set."""
        if self.data is None:
            return "the length of the data set is not known"
        if len(self.times) > self.data:
            return "rows are cut otherwise than the data set is"
        return "the run was shorter than an epoch"

    @property
    def is_of_duplicates(self) -> bool:
        """Return whether copies in the data explain how often each row was seen."""
        assert self.data
        epochs = self.seen / self.data
        copies = most = 0
        for times in self.times.values():
            least = max(1, math.ceil(times / math.ceil(epochs)))
            if times < least * math.floor(epochs):
                return False
            copies += least
            most += times // math.floor(epochs)
        return copies <= self.data <= most


def count_rows(facts: Facts) -> RowCounts:
    """Count the rows of all ranks."""
    times = Counter(digest for one in facts.of("rows") for digest in one["rows"])
    loaders = {
        int(loader["rows"]): loader
        for one in facts.of("rows")
        for loader in one.get("data") or ()
        if loader["rows"]
    }
    if len(loaders) != 1:  # which of several is that of an evaluation is not known
        return RowCounts(times, None, 0)
    ((rows, loader),) = loaders.items()
    batch = int(loader["batch"] or 1) * facts.world
    by_weights = loader["sampler"] == "WeightedRandomSampler"
    left_out = batch - 1 if loader["drop_last"] else 0
    fills_up = facts.world > 1 and rows % batch > 0
    return RowCounts(times, rows, left_out, loader["copies"], by_weights, fills_up)


def _uneven(facts: Facts) -> CheckOutcome:
    if not facts.of("rows"):
        return CheckOutcome(not_run=facts.skipped("ledger") or "no row was seen")
    if facts.not_data_parallel:
        return CheckOutcome(not_run=f"ranks share their rows ({facts.not_data_parallel})")
    counts = count_rows(facts)
    measured = {
        "seen": counts.seen,
        "different": len(counts.times),
        "times": {f"{n} x": rows for n, rows in sorted(Counter(counts.times.values()).items())},
        "in the data": counts.data,
    }
    if counts.data is None or len(counts.times) > counts.data or counts.seen < counts.data:
        return CheckOutcome(not_run=counts.not_compared, measured=measured)
    if same_batches(facts):
        return CheckOutcome(not_run=_AGAIN, measured=measured)
    missing = counts.data - len(counts.times)
    one = _too_few(counts, missing) if missing > counts.left_out else _too_often(counts)
    looked_at: dict[Unit, int] = {"rows": counts.seen}
    return CheckOutcome((one,) if one else (), looked_at=looked_at, measured=measured)


def _too_few(counts: RowCounts, missing: int) -> Diagnostic:
    most = max(counts.times.values())
    shown = (
        f"{counts.seen} rows were shown, of a data set of {counts.data}: {len(counts.times)}"
        f" different ones, one of them {most} times"
    )
    few = counts.copies is not None and counts.copies < missing - counts.left_out
    if few and not counts.by_weights:
        has = f"has {counts.copies} copies" if counts.copies else "has no copy"
        message = f"{shown}, and {missing} never: the data {has} of a row that would explain it"
        return found(UNEVEN, message)
    if counts.by_weights or counts.is_of_duplicates:
        copies = f"as it would be where the data has {missing} rows more than once"
        message = f"{shown}; {'rows are drawn by weights' if counts.by_weights else copies}"
        return found(UNEVEN, message, severity="note")
    return found(UNEVEN, f"{shown}, so {missing} never, or too seldom")


def _too_often(counts: RowCounts) -> Diagnostic | None:
    """Compare the rows of whole epochs, none of which is missing, with each other."""
    assert counts.data
    most, least = max(counts.times.values()), min(counts.times.values())
    by_design = counts.by_weights or counts.fills_up or counts.left_out
    if by_design or counts.seen % counts.data or most == least:
        return None
    message = (
        f"in {counts.seen // counts.data} epochs of {counts.data} rows one row was shown {most}"
        f" times, and another one {'once' if least == 1 else f'{least} times'}"
    )
    return found(UNEVEN, message)


def _same(facts: Facts) -> CheckOutcome:
    if len(facts.ranks) < 2:
        return CheckOutcome(not_run="one rank alone has this model")
    if facts.not_data_parallel:
        return CheckOutcome(not_run=f"ranks share their rows ({facts.not_data_parallel})")
    by_rank = {
        rank: Counter(
            digest for one in facts.of("rows") if int(one["rank"]) == rank for digest in one["rows"]
        )
        for rank in facts.ranks
    }
    first, *others = by_rank.values()
    counts = count_rows(facts)
    least = min(sum(rows.values()) for rows in by_rank.values())
    if sum(first.values()) < 2 or any(other != first for other in others):
        if overlap := overlapping_shares(facts, counts.data, counts.copies):
            one = found(SAME_ON_RANKS, overlap, help=SHARES_HELP, severity="warning")
            return CheckOutcome((one,))
        looked_at: dict[Unit, int] = {"ranks": len(by_rank), "rows": least}
        return CheckOutcome(looked_at=looked_at, measured={"ranks": len(by_rank)})
    message = f"all {len(by_rank)} ranks were shown the same {sum(first.values())} rows"
    return CheckOutcome((found(SAME_ON_RANKS, message, severity=_certain(facts)),))


def _one_order(facts: Facts) -> CheckOutcome:
    shuffled = [one for fact in facts.of("rows") for one in fact.get("data") or ()]
    if not any(one["shuffled"] for one in shuffled):
        return CheckOutcome(not_run="no loader is known to shuffle its rows")
    if same_batches(facts):
        return CheckOutcome(not_run=_AGAIN)
    epochs = {rank: _equal_epochs(_in_order(facts, rank)) for rank in facts.ranks}
    if None in epochs.values():
        return CheckOutcome(not_run="no rank was shown all of its rows twice")
    if not epochs or not all(epochs.values()):
        rows = min((len(_in_order(facts, rank)) for rank in epochs), default=0)
        return CheckOutcome(looked_at={"rows": rows}, measured={"ranks": len(epochs)})
    rank, (count, each) = next((rank, one) for rank, one in epochs.items() if one)
    where = f" of rank {rank}" if len(epochs) > 1 else ""
    message = f"{count} epochs{where} have their {each} rows in one order, and rows are shuffled"
    return CheckOutcome((found(ONE_ORDER, message),))


def _in_order(facts: Facts, rank: int) -> list[str]:
    ones = [one for one in facts.of("rows") if int(one["rank"]) == rank]
    return [digest for one in ones for digest in one["rows"]]


def _equal_epochs(rows: Sequence[str]) -> tuple[int, int] | tuple[()] | None:
    """Return how many whole epochs have one order, and of how many rows; empty if orders differ.

    An epoch ends where a row comes again. None where there is no second whole one.
    """
    last: dict[str, int] = {}
    first = len(rows)
    for at, row in enumerate(rows):
        if last.setdefault(row, at) != at:
            first = at
            break
    if first < _LEAST_ROWS or len(rows) < 2 * first:
        return None
    if any(rows[at] != rows[at - first] for at in range(first, len(rows))):
        return ()
    return len(rows) // first, first


def _certain(facts: Facts) -> str:
    """Return `error` where each rank averages by its own rows, `note` where a mesh may share."""
    return "error" if facts.model.get("mesh") in (None, {}) else "warning"


CHECKS = (
    WatchCheck(UNEVEN, "ledger", _uneven, {"rows": 1}),
    WatchCheck(SAME_ON_RANKS, "ledger", _same, {"ranks": 2, "rows": 2}),
    WatchCheck(ONE_ORDER, "ledger", _one_order, {"rows": 2 * _LEAST_ROWS}),
)
