"""Results of an evaluation once all rows have answers: scores, lines and pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from vtool.evaluation.asking import Asked
from vtool.evaluation.metrics import Metric, Named, metrics_for
from vtool.evaluation.rows import Questions
from vtool.evaluation.samples import first_picture
from vtool.evaluation.scoring import Scored, score_answers
from vtool.evaluation.store import Store
from vtool.version import __version__

PICTURES = 120
"""Rows whose first image is kept for the page, wrong answers first."""
_SIDE = 256
_OWN = {each.name for each in fields(Asked)} | {"scores", "picture"}


def score_and_keep(
    store: Store,
    questions: Questions,
    answers: Sequence[Asked],
    named: Named,
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
        by: the key of rows that tells groups.
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
        | ({"picture": pictures[one.index]} if one.index in pictures else {})
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
    answers: Sequence[Asked],
    values: Sequence[float] | None,
) -> dict[int, str]:
    """Write the first image of the worst answers beside the predictions; return their names."""
    if values is None:
        return {}
    order = sorted(zip(values, answers, strict=True), key=lambda pair: pair[0])
    folder = store.path / "images"
    folder.mkdir(exist_ok=True)
    found = {}
    for _, one in order[:PICTURES]:
        path = folder / f"{one.index:05d}.png"
        if not path.exists():
            picture = first_picture(questions.rows.rows.row(one.index), questions.rows)
            if picture is None:
                continue
            small = picture.copy()
            small.thumbnail((_SIDE, _SIDE))
            small.save(path)
        found[one.index] = f"images/{path.name}"
    return found
