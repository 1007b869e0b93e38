"""Results of an evaluation once all rows have answers: scores, lines and pictures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vtool.evaluation.asking import AskedRow
from vtool.evaluation.metrics import Metric, NamedMetrics, metrics_for
from vtool.evaluation.rows import Questions
from vtool.evaluation.samples import picture_of
from vtool.evaluation.scoring import Scored, score_answers
from vtool.evaluation.store import Store
from vtool.kept_pictures import keep_picture
from vtool.version import __version__

_PICTURES, _RIGHT, _OF_A_ROW = 240, 60, 4
"""Rows whose images are kept for the page, wrong answers first; the right ones of these; images."""
_SIDE = 256
_OWN = {each.name for each in fields(AskedRow)} | {"scores", "pictures"}


def score_and_keep(
    store: Store,
    questions: Questions,
    answers: Sequence[AskedRow],
    named: NamedMetrics,
    choices: Sequence[str],
    by: str | None,
    about: Mapping[str, Any],
    notes: Sequence[str],
) -> Scored:
    """Score answers, and write the results; return the scores.

    Args:
        store: of the evaluation.
        questions: the rows.
        answers: to all of them that were asked.
        named: the metrics that are asked for.
        choices: of the metric `accuracy`.
        by: the key of rows that names groups.
        about: what was evaluated, for result.json.
        notes: sentences to put before those on the scores.
    """
    chosen = metrics_for(named, choices, [one.reference for one in answers])
    groups = (by, questions.values(by, [one.index for one in answers])) if by else None
    scored = score_answers(answers, chosen.metrics, chosen.choices, groups)
    scored = replace(
        scored,
        findings=(*chosen.findings, *scored.findings),
        notes=(*notes, *chosen.notes, *scored.notes),
    )
    wrong_by = sorting_metric(chosen.metrics, scored)
    pictures = _keep_pictures(store, questions, answers, scored.of_rows.get(wrong_by or ""))
    lines: list[dict[str, Any]] = [
        one.as_dict()
        | ({by: groups[1][one.index]} if by and groups and by not in _OWN else {})
        | {"scores": {name: values[place] for name, values in scored.of_rows.items()}}
        | ({"pictures": pictures[one.index]} if one.index in pictures else {})
        for place, one in enumerate(answers)
    ]
    result = {
        **about,
        "answered": len(answers),
        "sorted_by": wrong_by,
        **scored.as_dict(),
        "findings": [
            {"rule": one.rule, "severity": one.severity, "message": one.message}
            for one in scored.findings
        ],
        "versions": {"vtool": __version__, "torch": torch.__version__},
    }
    store.finish(lines, result)
    return scored


def sorting_metric(metrics: Sequence[Metric], scored: Scored) -> str | None:
    """Return the metric that says which answers are wrong: the last that was scored."""
    return next((one.name for one in reversed(metrics) if one.name in scored.of_rows), None)


def _keep_pictures(
    store: Store,
    questions: Questions,
    answers: Sequence[AskedRow],
    values: Sequence[float] | None,
) -> dict[int, list[str]]:
    """Write the images of the worst answers next to the predictions; return their names."""
    if values is None:
        return {}
    order = sorted(zip(values, answers, strict=True), key=lambda pair: (pair[0], -_loss(pair[1])))
    wrong = sum(value < 1 for value in values)
    folder = store.path / "images"
    found = {}
    with store.writing():
        for _, one in order[: min(_PICTURES, wrong + _RIGHT)]:
            if names := _keep_pictures_of(one.index, questions, folder):
                found[one.index] = names
    return found


def _keep_pictures_of(index: int, questions: Questions, folder: Path) -> list[str]:
    """Write a row's images; those that are there already are not read again."""
    row = questions.rows.rows.row(index)
    names = []
    for place in range(min(_OF_A_ROW, len(row.images) or len(row.videos[:1]))):
        path = folder / (f"{index:05d}.png" if place == 0 else f"{index:05d}-{place + 1}.png")
        keep_picture(path, _SIDE, partial(picture_of, row, place, questions.rows))
        names.append(f"{folder.name}/{path.name}")
    return names


def _loss(one: AskedRow) -> float:
    return math.inf if one.nll is None else one.nll / one.supervised
