"""The answers that the page of an evaluation shows: the wrong ones first, as many as it has room.

Files are read line by line, and only what is shown is kept, however many rows there are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from pathlib import Path

from markupsafe import escape

from vtool.report.evaluation.files import Line, read_answer_rows
from vtool.report.images import Picture, Pictures

MOST_WRONG, MOST_RIGHT, MOST_DIFFERENT = 400, 60, 60
"""Rows that are shown at most; of those in which two models differ, for each model."""
_LONGEST_TEXT = 700


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row as the page shows it."""

    line: Line
    question: str
    """Empty where all rows ask the same, which the page says once above them."""
    pictures: tuple[Picture, ...]
    missing: int
    """Images of the row that the page has not."""
    wrong: bool
    other: str | None = None
    """The other model's answer, of a row in which two models differ."""
    source: str = ""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one kind: those that are shown, of how many."""

    rows: tuple[ShownRow, ...]
    of: int


@dataclass(frozen=True, slots=True)
class Answers:
    """The rows that the page shows with their answers, by kind."""

    wrong: RowGroup
    right: RowGroup


@dataclass(frozen=True, slots=True)
class Differing:
    """The rows that one of two models has better than the other."""

    first: RowGroup
    """Better in this evaluation's model."""
    other: RowGroup
    shared: int


class Room:
    """Room for pictures and for texts, in bytes of the page, until it is used up."""

    def __init__(self, pictures: int, texts: int) -> None:
        self.pictures, self.texts = Pictures(pictures), texts

    def take(self, texts: Iterable[str | None]) -> bool:
        """Take the room of these texts, and return true; false where there is none left."""
        size = sum(len(str(escape(text)).encode(errors="replace")) for text in texts if text)
        self.texts -= size
        return self.texts >= 0


def is_wrong(line: Line, metric: str) -> bool:
    """Return if an answer is less than right by a metric."""
    return line.scores.get(metric, 0.0) < 1


def _worst(line: Line, metric: str) -> tuple[float, float]:
    """Return a sort key that puts the worst answers first, and of like ones the largest loss."""
    return line.scores.get(metric, 0.0), -line.loss


def one_question(folder: Path) -> str:
    """Return the question that all rows ask; nothing where they differ."""
    first: str | None = None
    for line in read_answer_rows(folder):
        first = line.question if first is None else first
        if line.question != first:
            return ""
    return _short(first or "")


def shown_answers(folder: Path, metric: str, question: str, room: Room) -> Answers:
    """Return the rows that are shown: the wrong ones, then those right ones of the largest loss.

    Args:
        folder: of the evaluation.
        metric: that says what is wrong.
        question: that all rows ask, which the page has elsewhere.
        room: on the page, which is taken.
    """
    sources: set[str] = set()
    counts = {True: 0, False: 0}
    for line in read_answer_rows(folder):
        counts[is_wrong(line, metric)] += 1
        if len(sources) < 2:
            sources.add(line.source)

    def shown(wrong: bool, most: int) -> RowGroup:
        own = (line for line in read_answer_rows(folder) if is_wrong(line, metric) is wrong)
        lines = nsmallest(most, own, key=lambda line: _worst(line, metric))
        rows = [
            _show(line, folder, question, wrong, room.pictures, named=len(sources) > 1)
            for line in lines
        ]
        return RowGroup(_fitting(rows, room), counts[wrong])

    return Answers(shown(True, MOST_WRONG), shown(False, MOST_RIGHT))


def differing_rows(
    folder: Path, other: Path, metric: str, question: str, room: Room
) -> Differing | None:
    """Return the rows in which two models differ; None where they share no row with a score.

    Args:
        folder: of the evaluation.
        other: of the other model's evaluation.
        metric: that says which answer is better.
        question: that all rows ask, which the page has elsewhere.
        room: on the page, which is taken.
    """
    scores = {
        (line.index, line.row): line.scores[metric]
        for line in read_answer_rows(other)
        if metric in line.scores
    }
    sides: dict[int, list[tuple[float, float, int]]] = {1: [], -1: []}
    shared = 0
    for line in read_answer_rows(folder):
        its = scores.get((line.index, line.row))
        if its is None or metric not in line.scores:
            continue
        shared += 1
        if apart := line.scores[metric] - its:
            sides[1 if apart > 0 else -1].append((-abs(apart), -line.loss, line.index))
    if not shared:
        return None
    chosen = {
        side: [index for *_, index in nsmallest(MOST_DIFFERENT, sides[side])] for side in sides
    }
    wanted = {index for indices in chosen.values() for index in indices}
    first, second = (
        {line.index: line for line in read_answer_rows(place) if line.index in wanted}
        for place in (folder, other)
    )

    def shown(side: int) -> RowGroup:
        rows = []
        for index in chosen[side]:
            line, its = first[index], second[index]
            # a folder has the pictures of its own worst answers
            holder, place = (line, folder) if line.pictures else (its, other)
            pictured = replace(line, pictures=holder.pictures)
            made = _show(pictured, place, question, side < 0, room.pictures)
            rows.append(replace(made, other=_short(its.answer)))
        return RowGroup(_fitting(rows, room), len(sides[side]))

    return Differing(shown(1), shown(-1), shared)


def _show(
    line: Line,
    folder: Path,
    question: str,
    wrong: bool,
    pictures: Pictures,
    *,
    named: bool = False,
) -> ShownRow:
    found = tuple(
        picture for name in line.pictures if (picture := pictures.embed(folder, name)) is not None
    )
    short = replace(
        line,
        row=_short(line.row),
        reference=_short(line.reference),
        answer=_short(line.answer),
    )
    own = "" if question else _short(line.question)
    missing = max(line.shows, len(line.pictures)) - len(found)
    return ShownRow(short, own, found, missing, wrong, source=line.source if named else "")


def _fitting(rows: Sequence[ShownRow], room: Room) -> tuple[ShownRow, ...]:
    """Return the first rows whose texts there is room for."""
    fitting = []
    for one in rows:
        line = one.line
        if not room.take((one.question, line.reference, line.answer, line.row, one.other)):
            break
        fitting.append(one)
    return tuple(fitting)


def _short(text: str) -> str:
    return (
        text
        if len(text) <= _LONGEST_TEXT
        else f"{text[:_LONGEST_TEXT]} … ({len(text):,} characters)"
    )
