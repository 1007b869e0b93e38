"""The contact sheet: test images with their answers, wrong ones first, and where runs disagree."""

from collections.abc import Sequence
from dataclasses import dataclass

from vtool.report.images import Picture, Pictures
from vtool.report.run_files import Prediction, RunFiles

_MOST_TILES = 24
_LONGEST_TEXT = 280
_SHORT_ANSWER = 14


@dataclass(frozen=True, slots=True)
class Tile:
    """One test row."""

    row: str
    question: str
    """Empty where all rows ask the same, which the page says once above them."""
    reference: str
    picture: Picture | None
    has_image: bool
    answers: tuple[tuple[int, str, bool], ...]
    """For each run its position, its answer, and whether that is right."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """The tiles of one run."""

    question: str
    """The question of every row; empty where they differ."""
    wrong: tuple[Tile, ...]
    right: tuple[Tile, ...]
    wrong_in_all: int
    right_in_all: int

    @property
    def wordy(self) -> bool:
        """True where the tiles need room for text."""
        return _wordy((*self.wrong, *self.right))


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The test rows that some runs answer rightly and others do not."""

    tiles: tuple[Tile, ...]
    in_all: int
    shared_rows: int
    alone_right: tuple[tuple[int, int], ...]
    """The position of each run that has answers, and how many of them only it has right."""
    kept: int
    """The rows that may be shown: whose images a run has kept, or where none has any, all."""

    @property
    def wordy(self) -> bool:
        """True where the tiles need room for text."""
        return _wordy(self.tiles)


def sheet(run: RunFiles, position: int, pictures: Pictures) -> Sheet:
    """Return the first wrong and right answers that have an image, or where none has, any."""
    wrong = [prediction for prediction in run.predictions if not prediction.correct]
    right = [prediction for prediction in run.predictions if prediction.correct]
    question = _one_question(run.predictions)

    def tiles(rows: Sequence[Prediction]) -> tuple[Tile, ...]:
        shown = ([row for row in rows if row.image] or rows)[:_MOST_TILES]
        return tuple(_tile([(position, run, row)], question, pictures) for row in shown)

    return Sheet(question, tiles(wrong), tiles(right), len(wrong), len(right))


def disagreement(runs: Sequence[RunFiles], pictures: Pictures) -> Disagreement | None:
    """Return where runs disagree; None where fewer than two have answers to the same rows."""
    answered = [
        (position, run, {row.row: row for row in run.predictions})
        for position, run in enumerate(runs)
        if run.predictions
    ]
    if len(answered) < 2:
        return None
    first = answered[0][2]
    shared = [row for row in first if all(row in rows for _, _, rows in answered)]
    split = [row for row in shared if len({rows[row].correct for _, _, rows in answered}) > 1]
    right = {
        row: [position for position, _, rows in answered if rows[row].correct] for row in split
    }
    question = _one_question([first[row] for row in shared])
    # A run keeps the images of some of its rows only.
    with_image = [row for row in split if any(rows[row].image for _, _, rows in answered)]
    answers = (
        [(position, run, rows[row]) for position, run, rows in answered]
        for row in _spread(with_image or split)
    )
    tiles = tuple(_tile(answer, question, pictures) for answer in answers)
    alone = tuple(
        (position, sum(right[row] == [position] for row in split)) for position, _, _ in answered
    )
    kept = len(with_image or split)
    return Disagreement(tiles, len(split), len(shared), alone, kept) if shared else None


def _tile(
    answered: Sequence[tuple[int, RunFiles, Prediction]], question: str, pictures: Pictures
) -> Tile:
    # A run keeps the images of some of its rows only, and not the same as another run.
    _, run, row = next((one for one in answered if one[2].image), answered[0])
    return Tile(
        row.row,
        "" if question else short(row.question),
        short(row.reference),
        pictures.embed(run.folder, row.image) if row.image else None,
        row.image is not None,
        tuple(
            (position, short(prediction.answer), prediction.correct)
            for position, _, prediction in answered
        ),
    )


def _wordy(tiles: Sequence[Tile]) -> bool:
    """Return true where the tiles need room for text."""
    texts = [
        text
        for tile in tiles
        for text in (tile.reference, *(answer for _, answer, _ in tile.answers))
    ]
    return any(tile.question for tile in tiles) or any(len(text) > _SHORT_ANSWER for text in texts)


def _one_question(rows: Sequence[Prediction]) -> str:
    questions = {row.question for row in rows}
    return questions.pop() if len(questions) == 1 else ""


def _spread(items: list[str]) -> list[str]:
    """Return items that are evenly spaced: the first ones are often all of one kind."""
    most = min(len(items), _MOST_TILES)
    return [items[index * len(items) // most] for index in range(most)]


def short(text: str) -> str:
    """Return a text that can be seen: the beginning of a long one, what it is where it is blank."""
    if not text.strip():
        return "(white space)" if text else "(empty)"
    return (
        text
        if len(text) <= _LONGEST_TEXT
        else f"{text[:_LONGEST_TEXT]} … ({len(text):,} characters)"
    )
