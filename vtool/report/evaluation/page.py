"""The page of an evaluation: scores, groups, and answers, the wrong ones first."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vtool.diagnostics import RULES
from vtool.report.evaluation.answers import (
    Differing,
    Room,
    differing_rows,
    one_question,
    shown_answers,
)
from vtool.report.evaluation.files import (
    AGAINST,
    PREDICTIONS,
    RESULT,
    finite_number,
    is_evaluation,
    read_json_object,
)
from vtool.report.files import inline_script, load_template
from vtool.report.replaceable import write_page
from vtool.report.views import Stat
from vtool.report.words import in_words, percent
from vtool.version import __version__

_PICTURES, _TEXTS = 2_500_000, 1_000_000
"""Bytes of pictures and of rows' texts on a page; the rest of the page is small."""
_DIFFERING = 3
"""The rows in which two models differ may take this part of the room, as 1 / it."""
_SEVERITIES = ("error", "warning", "note")


def write_evaluation(folder: Path, output: Path | None = None) -> Path:
    """Write the page of an evaluation's folder, and return its path; by default it is inside.

    Raises:
        OSError: it cannot be written.
    """
    return write_page(render_evaluation_page(folder), output or folder / "report.html")


def render_evaluation_page(folder: Path) -> str:
    """Return the page. The same files give the same bytes."""
    here = Path(__file__).parent
    result = read_json_object(folder / RESULT)
    against = read_json_object(folder / AGAINST)
    scores = _mappings(result.get("scores"))
    metric = str(result.get("sorted_by") or "")
    proportion = any(one.get("metric") == metric and one.get("right") is not None for one in scores)
    room = Room(_PICTURES // _DIFFERING, _TEXTS // _DIFFERING) if against else Room(0, 0)
    question = one_question(folder)
    named = [str(one.get("metric")) for one in scores]
    by = next(
        (
            (name, found)
            for name in dict.fromkeys((metric, *reversed(named)))
            if (found := _differing(folder, against, name, question, room)) is not None
        ),
        None,
    )
    rest = Room(
        _PICTURES - _PICTURES // _DIFFERING + room.pictures.left if against else _PICTURES,
        _TEXTS - _TEXTS // _DIFFERING + max(0, room.texts) if against else _TEXTS,
    )
    script, digest = inline_script(here / "filter.js")
    return load_template("evaluation.html.j2", here, here.parent).render(
        version=__version__,
        swatches=[],
        script=script,
        script_digest=digest,
        title=f"{_model_name(str(result.get('model', folder)))} on {result.get('rows', '')}",
        result={
            key: str(result.get(key, "")) for key in ("model", "base", "family", "rows", "how")
        },
        folder=str(folder),
        answered=finite_number(result.get("answered")) or 0,
        metric=metric,
        proportion=proportion,
        stats=[_stat(one) for one in scores],
        groups=list(_groups(result.get("groups"))),
        notes=[str(note) for note in _list(result.get("notes"))],
        findings=_findings(result),
        against=_against(against, named) if against else None,
        differing=by and by[1],
        differing_by=by and by[0],
        question=question,
        answers=shown_answers(folder, metric, question, rest),
        there=(folder / PREDICTIONS).is_file(),
    )


def _differing(
    folder: Path, against: Mapping[str, Any], metric: str, question: str, room: Room
) -> Differing | None:
    if not isinstance(against.get("evaluation"), str):
        return None
    other = Path(os.path.normpath(folder / against["evaluation"]))
    return differing_rows(folder, other, metric, question, room) if other.is_dir() else None


def _model_name(path: str) -> str:
    """Return a model's short name: its folder's, or its run's."""
    parts = Path(path).parts
    name = parts[-2] if len(parts) > 1 and parts[-1] == "export" else (parts or ("",))[-1]
    return name or path


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [one for one in _list(value) if isinstance(one, dict)]


def _stat(score: Mapping[str, Any]) -> Stat:
    value, low, high = (finite_number(score.get(key)) for key in ("value", "low", "high"))
    right, rows = finite_number(score.get("right")), finite_number(score.get("rows"))
    name, says = str(score.get("metric", "")), str(score.get("says", ""))
    if right is None or value is None or low is None or high is None:
        shown = None if value is None else in_words(value)
        return Stat(name, shown, f"95 % interval {_range(low, high, False)}; {says}")
    note = f"{in_words(right)} of {in_words(rows)}; 95 % interval {_range(low, high, True)}; {says}"
    return Stat(name, percent(value), note, (low, high), value)


def _groups(groups: object) -> Any:
    """Yield each table of groups: what distinguishes them, the metrics, and a line for each."""
    for by, own in groups.items() if isinstance(groups, dict) else ():
        if not isinstance(own, dict):
            continue
        lines = [(str(name), _mappings(scores)) for name, scores in own.items()]
        names = list(dict.fromkeys(str(one.get("metric")) for _, scores in lines for one in scores))
        rows = []
        for name, scores in lines:
            stats = {str(one.get("metric")): (_stat(one), _between(one)) for one in scores}
            count = next((finite_number(one.get("rows")) for one in scores), None)
            rows.append((name, in_words(count), [stats.get(each) for each in names]))
        yield str(by), names, rows


def _between(score: Mapping[str, Any]) -> str:
    low, high = finite_number(score.get("low")), finite_number(score.get("high"))
    return _range(low, high, score.get("right") is not None)


def _range(low: float | None, high: float | None, share: bool) -> str:
    if share and low is not None:
        return f"{100 * low:.3g} to {percent(high)}"
    return f"{in_words(low)} to {in_words(high)}"


def _findings(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = [
        {
            "rule": str(one.get("rule", "")),
            "severity": str(one.get("severity", "note")),
            "message": str(one.get("message", "")),
            "fix": rule.fix if (rule := RULES.get(str(one.get("rule")))) else None,
        }
        for one in _mappings(result.get("findings"))
    ]
    return sorted(
        found,
        key=lambda one: _SEVERITIES.index(one["severity"]) if one["severity"] in _SEVERITIES else 3,
    )


def _against(against: Mapping[str, Any], named: Collection[str]) -> dict[str, Any]:
    """Return the other model, and how it compares by the metrics that are still scored."""
    compared = _mappings(against.get("compared"))
    return {
        "model": str(against.get("model", "")),
        "name": _model_name(str(against.get("model", ""))),
        "rows": [_compared(one) for one in compared if one.get("metric") in named],
    }


def _compared(one: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return a metric, the difference, its interval, and whether it is beyond chance, in words."""
    value, low, high, p = (
        finite_number(one.get(key)) for key in ("difference", "low", "high", "p")
    )
    alone: Sequence[Any] = _list(one.get("alone"))
    say = percent if alone else in_words
    tested = "" if p is None else "p < 0.0001" if p < 1e-4 else f"p = {p:.4f}"
    if alone and tested:
        tested = f"right in it alone {alone[0]}, in the other alone {alone[-1]}; {tested} (McNemar)"
    elif tested:
        tested = f"{tested} (bootstrap)"
    sign = "+" if value is not None and value > 0 else ""
    return str(one.get("metric")), sign + say(value), _range(low, high, bool(alone)), tested


__all__ = ["is_evaluation", "render_evaluation_page", "write_evaluation"]
