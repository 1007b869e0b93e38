"""An evaluation's folder, read into frozen records.

What is absent or damaged is left out and counted, never raised: a page is made of what there is.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtool.contents import read_lines, read_small_json

PREDICTIONS, RESULT, AGAINST = "predictions.jsonl", "result.json", "against.json"
_TEXTS = ("row", "source", "question", "reference", "answer")


@dataclass(frozen=True, slots=True)
class Line:
    """A row with the model's answer."""

    index: int
    row: str
    source: str
    question: str
    reference: str
    answer: str
    loss: float
    """Nats a supervised token; infinite where it is not known."""
    confidence: float | None
    stopped: bool
    pictures: tuple[str, ...]
    """Files in the folder."""
    shows: int
    """Images that the row has, as far as the line says."""
    scores: Mapping[str, float]


def is_evaluation(folder: Path) -> bool:
    """Return if `vtool evaluate` has scored answers into this folder."""
    return (folder / PREDICTIONS).is_file() and isinstance(
        read_json_object(folder / RESULT).get("scores"), list
    )


def read_json_object(file: Path) -> Mapping[str, Any]:
    """Return a JSON object; nothing where the file has none."""
    try:
        found = read_small_json(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_answer_rows(folder: Path) -> Iterator[Line]:
    """Yield the rows with answers, as they come; a line that is none is left out."""
    try:
        for line in read_lines(folder / PREDICTIONS):
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(values, dict) and isinstance(values.get("index"), int):
                yield _line(values)
    except OSError:
        return


def finite_number(value: object) -> float | None:
    """Return a number; None for anything else, and for one that is not finite."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) else None  # type: ignore[arg-type]


def _line(values: Mapping[str, Any]) -> Line:
    nll, supervised = finite_number(values.get("nll")), finite_number(values.get("supervised"))
    scores, images = values.get("scores"), values.get("images")
    pictures = values.get("pictures")
    row, source, question, reference, answer = (str(values.get(key, "")) for key in _TEXTS)
    return Line(
        values["index"],
        row,
        source,
        question,
        reference,
        answer,
        math.inf if nll is None or not supervised else nll / supervised,
        finite_number(values.get("confidence")),
        values.get("stopped") is True,
        tuple(map(str, pictures)) if isinstance(pictures, list) else (),
        len(images) if isinstance(images, list) else 0,
        {
            str(name): number
            for name, value in (scores.items() if isinstance(scores, dict) else ())
            if (number := finite_number(value)) is not None
        },
    )
