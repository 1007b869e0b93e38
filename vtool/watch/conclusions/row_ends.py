"""Padding that is learnt and that no config names: one id over and over at the ends of rows.

The batch's own mask may leave it out: then it is padding for certain. Else it is what fills rows up
to one length: texts of several lengths, all learnt to the last place, end in runs of one id that is
nowhere else in a row over and over. A text may well end in "!!!!", and code has runs of blanks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vtool.watch.facts import Facts
from vtool.watch.micro_pass import MicroPass
from vtool.watch.token_texts import token_text

_LEAST_ROWS, _LEAST_RUNS, _LEAST_LEFT_OUT = 2, 2, 2
_SHARE, _OTHERS, _WITHIN = 1 / 8, 1 / 5, 1 / 10
"""Parts: the rows of one width that end in the run; of these, those of other ids, and elsewhere."""
_LONG, _VERY_LONG = 4, 8
"""The longest run at least; where all rows end in one as long as the other, that is long."""
_LEAST_SINGLE, _EVEN = 4, 8
_TO_THE_END = 0.9


@dataclass(frozen=True, slots=True)
class RowEnd:
    """A row that ends, or begins, in a run of one id that is learnt."""

    token: int
    run: int
    learnt: int
    read: int
    left_out: int | None
    """Learnt places of the run that the batch's mask leaves out; None where that is not known."""


@dataclass(frozen=True, slots=True)
class LearntPadding:
    """One id that looks like padding, and is learnt."""

    token: int
    side: str
    rows: int
    of: int
    tokens: int
    longest: int
    masked: bool
    """The batches' own masks leave it out."""

    def says(self, facts: Facts) -> str:
        """Describe the rows that were seen."""
        name = f"token {self.token}"
        if facts.tokenizer is not None:
            name = f"{token_text(facts.tokenizer, self.token)} ({self.token})"
        where = "end in" if self.side == "ends" else "begin with"
        why = (
            "which their attention_mask leaves out"
            if self.masked
            else "which fills them up to one length"
        )
        end = ", an end token" if self.token in facts.ends else ""
        return (
            f"{self.rows} of {self.of} rows {where} up to {self.longest} x {name}{end}, {why}:"
            f" {self.tokens} of these are learnt, and no config names them as padding"
        )


def looked_at(micros: Sequence[MicroPass]) -> int:
    """Count the rows whose ends were looked at."""
    return sum(int(micro.fact["row_ends"]["rows"]) for micro in micros if micro.fact["row_ends"])


def known_padding(facts: Facts, micros: Sequence[MicroPass]) -> int:
    """Count learnt tokens of padding that the config names, in runs at the ends of all rows."""
    return sum(
        row.read
        for micro in micros
        for side in ("ends", "begins")
        for row in _rows(micro, side)
        if row.token in facts.pads
    )


def unnamed_padding(facts: Facts, micros: Sequence[MicroPass]) -> LearntPadding | None:
    """Return padding that is learnt and that the config does not name, or None."""
    looked = [micro for micro in micros if micro.fact["row_ends"]]
    for side in ("ends", "begins"):
        rows = [(micro, row) for micro in looked for row in _rows(micro, side)]
        for token in sorted({row.token for _, row in rows} - facts.pads):
            mine = [(micro, row) for micro, row in rows if row.token == token and row.read]
            masked = [
                (micro, row)
                for micro, row in mine
                if row.left_out is not None and row.left_out >= _LEAST_LEFT_OUT
            ]
            if masked:
                return _padding(looked, token, side, masked, masked=True)
            if filling := _filling(looked, token, side, mine, len(rows)):
                return _padding(looked, token, side, filling, masked=False)
    return None


def _filling(
    looked: Sequence[MicroPass],
    token: int,
    side: str,
    mine: Sequence[tuple[MicroPass, RowEnd]],
    all_runs: int,
) -> list[tuple[MicroPass, RowEnd]]:
    """Return the rows that an id fills up to the width of others; none where it may be text."""
    shared = _of_one_width(looked)
    filled = [(micro, row) for micro, row in mine if micro in shared]
    rows = looked_at(shared)
    if len(filled) < max(_LEAST_ROWS, _SHARE * rows) or all_runs - len(mine) > _OTHERS * len(mine):
        return []
    within = sum(int(micro.fact["row_ends"]["within"].get(str(token), 0)) for micro in looked)
    to_the_end = sum(int(micro.fact["row_ends"]["to_the_end"]) for micro in shared)
    runs = {row.run for _, row in filled}
    all_long = len(filled) >= _TO_THE_END * rows and min(runs) >= _VERY_LONG
    if not all_long and (len(runs) < _LEAST_RUNS or max(runs) < _LONG):
        return []
    if within > _WITHIN * len(filled) or to_the_end < _TO_THE_END * rows:
        return []
    return filled


def _of_one_width(looked: Sequence[MicroPass]) -> list[MicroPass]:
    """Return the micro-batches whose rows share their width.

    Those of one row do where all of them have one, or one that is made even by multiples of 8.
    """
    several = [micro for micro in looked if int(micro.fact["shape"][0]) > 1]
    single = [micro for micro in looked if int(micro.fact["shape"][0]) == 1]
    widths = {_width(micro) for micro in single}
    alike = len(widths) == 1 or all(width % _EVEN == 0 for width in widths)
    return several + (single if alike and len(single) >= _LEAST_SINGLE else [])


def _padding(
    looked: Sequence[MicroPass],
    token: int,
    side: str,
    rows: Sequence[tuple[MicroPass, RowEnd]],
    *,
    masked: bool,
) -> LearntPadding:
    return LearntPadding(
        token,
        side,
        len(rows),
        looked_at(looked),
        sum(row.learnt for _, row in rows),
        max(row.run for _, row in rows),
        masked,
    )


def _width(micro: MicroPass) -> int:
    return int(micro.fact["shape"][-1])


def _rows(micro: MicroPass, side: str) -> list[RowEnd]:
    ends: Mapping[str, Sequence[Sequence[int | None]]] | None = micro.fact["row_ends"]
    if ends is None:
        return []
    return [
        RowEnd(int(token or 0), int(run or 0), int(learnt or 0), int(read or 0), left_out)
        for token, run, learnt, read, left_out in ends[side]
    ]
