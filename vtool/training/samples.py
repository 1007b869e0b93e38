"""Rows that are kept for the page: their pictures, and validation rows that are asked again."""

from collections.abc import Sequence
from typing import Any

from vtool.data.loader import EncodedRows
from vtool.data.row import texts_of
from vtool.evaluation.evaluate import RowAnswer
from vtool.evaluation.samples import first_picture
from vtool.kept_pictures import keep_picture
from vtool.training.metrics import append
from vtool.training.run_folder import RunFolder

SAMPLE_SIDE = 256
"""The longest side of a picture, in pixels."""
ASKED_AGAIN = 8
"""Validation rows whose answers are kept at each evaluation."""


def describe(rows: EncodedRows, answer: RowAnswer) -> dict[str, Any]:
    """Return a row's question, reference and answer as JSON."""
    row = rows.rows.row(answer.index)
    question = [message for message in row.messages if message["role"] == "user"][-1:]
    return {
        "row": row.id,
        "question": " ".join(text for message in question for text in texts_of(message)),
        "reference": answer.reference,
        "answer": answer.answer,
        "correct": answer.correct,
    }


def write_picture(folder: RunFolder, rows: EncodedRows, index: int, name: str) -> dict[str, str]:
    """Write a row's picture as `samples/NAME.png`, unless it is there, and return where.

    Returns:
        `image`, or nothing for a row without a picture.
    """
    path = folder.samples / f"{name}.png"
    there = keep_picture(path, SAMPLE_SIDE, lambda: first_picture(rows.rows.row(index), rows))
    return {"image": str(path.relative_to(folder.path))} if there else {}


def keep_asked_again(
    folder: RunFolder, rows: EncodedRows, step: int, answers: Sequence[RowAnswer]
) -> None:
    """Append the answers to the same few rows, evenly spaced, to `validation.jsonl`.

    Raises:
        Findings: `run-folder-unwritable`.
    """
    shown = min(len(answers), ASKED_AGAIN)
    lines = []
    with folder.writing():
        for place in range(shown):
            answer = answers[place * len(answers) // shown]
            name = f"validation-{answer.index:05d}"
            lines.append(describe(rows, answer) | write_picture(folder, rows, answer.index, name))
    append(folder.asked_again, {"step": step, "answers": lines})
