"""The page, made from the JSON of `vtool watch --format json` alone."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vtool.report.files import load_template
from vtool.report.replaceable import write_page
from vtool.report.results import checks_of, findings_of
from vtool.version import __version__
from vtool.words import plural

_REPEATS = 4
_VERDICTS = {
    "unsafe": "errors",
    "warnings": "warnings",
    "not-run": "nothing could be read",
    "incomplete": "not everything was looked at",
    "clean": "clean",
}
"""The verdicts in words, the worst first."""
_PART = "·"
"""A token that is a part of a character: the first of its tokens has the text."""


def write_watch(document: Mapping[str, Any], output: Path) -> Path:
    """Write the page to `output`, and return `output`.

    Args:
        document: what `vtool.diagnostics.render.as_json` gives, and `--format json` prints.

    Raises:
        OSError: the page cannot be written.
    """
    return write_page(render_watch_page(document), output)


def render_watch_page(document: Mapping[str, Any]) -> str:
    """Return the page. The same document gives the same bytes."""
    here = Path(__file__).parent
    results = document["results"]
    models = [_model(result, at, len(results) > 1) for at, result in enumerate(results, 1)]
    title = models[0]["name"] if len(models) == 1 else plural(len(models), "model")
    worst = min((result["verdict"] for result in results), key=list(_VERDICTS).index)
    return load_template("watch.html.j2", here, here.parent / "load_check", here.parent).render(
        version=__version__,
        made_by=document["tool"],
        title=f"{title}: {_VERDICTS[worst]}",
        heading=Markup("<wbr>").join(re.split(r"(?<=[a-z])(?=[A-Z])", title)),
        summary=document["summary"],
        models=models,
    )


def _model(result: Mapping[str, Any], number: int, several: bool) -> dict[str, Any]:
    seen: Mapping[str, Any] = result.get("details", {}).get("watch", {})
    model: Mapping[str, Any] = seen.get("model", {})
    name = str(model.get("class") or "No model")
    return {
        "id": f"model-{number}",
        "name": f"{name} {seen.get('number', number)}" if several else name,
        "subject": result["subject"],
        "verdict": result["verdict"],
        "said": _VERDICTS[result["verdict"]],
        "missing": seen.get("unlooked", ()),
        "seen": seen,
        "facts": [*model.items(), *seen.get("process", {}).items()],
        "findings": findings_of(result),
        "rows": [_row(row) for row in seen.get("rows", ())],
        "steps": _steps(seen.get("bars", ())),
        "documents": _documents(seen.get("documents", ())),
        "checks": checks_of(result),
        "noted": {each["rule"] for each in result["findings"] if each["severity"] == "note"},
    }


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's tokens, each with a shade: its weight relative to the largest of the row."""
    tokens: Sequence[Mapping[str, Any]] = row["tokens"]
    largest = max((abs(token["weight"] or 0) for token in tokens), default=0) or 1
    learnt = [token["weight"] for token in tokens if token["weight"] is not None]
    return {
        **row,
        "learnt": len(learnt),
        "low": min(learnt, default=0),
        "high": max(learnt, default=0),
        "tokens": [
            {
                "text": str(token["text"]).replace("\n", "⏎\n") or _PART,
                "learnt": token["weight"] is not None,
                "other": token.get("learnt"),
                "weight": token["weight"],
                "down": (token["weight"] or 0) < 0,
                "shade": round(0.12 + 0.5 * abs(token["weight"] or 0) / largest, 2),
            }
            for token in _folded(tokens)
        ],
    }


def _folded(tokens: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a row's tokens with long runs of one, such as padding, as one.

    Learnt ones have one weight.
    """
    found: list[Mapping[str, Any]] = []
    for (text, *_), run in groupby(
        tokens, lambda one: (one["text"], one["weight"], one.get("learnt"))
    ):
        same = list(run)
        if len(same) < _REPEATS:
            found += same
        else:
            found.append({**same[0], "text": f"{text.rstrip(' ')} x {len(same)} "})
    return found


def _steps(bars: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the micro-batches of each step, each with the length of its bar."""
    steps = []
    for step in sorted({bar["step"] for bar in bars}):
        mine = [bar for bar in bars if bar["step"] == step]
        largest = max((abs(bar["weight"] or 0) for bar in mine if bar["read"]), default=0) or 1
        steps.append(
            {
                "step": step + 1,
                "bars": [
                    {**bar, "share": round(100 * abs(bar["weight"] or 0) / largest, 2)}
                    for bar in mine
                ],
            }
        )
    return steps


def _documents(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each row of a batch, its documents in order: a line of the matrix."""
    lines: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for document in documents:
        apart, allowed = document["apart"], document["tolerance"]
        known = apart is not None and allowed is not None and not document["dropout"]
        wrong = known and apart > allowed
        lines.setdefault((document["step"], document["rank"], document["row"]), []).append(
            {
                **document,
                "state": "wrong" if wrong or document["positions_wrong"] else "right",
                "known": known,
                "times": apart / allowed if known and allowed else None,
            }
        )
    return [
        {"step": step + 1, "rank": rank, "row": row, "documents": cells}
        for (step, rank, row), cells in sorted(lines.items())
    ]
