"""The page, made from the JSON of `vtool watch --format json` alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vtool.diagnostics import RULES
from vtool.report.files import load_template, write_page
from vtool.report.words import plural
from vtool.version import __version__

_SEVERITIES = ("error", "warning", "note")
_STATES = ("failed", "not-run", "passed")


def write_watch(document: Mapping[str, Any], output: Path) -> Path:
    """Write the page to `output`, and return `output`.

    Args:
        document: what `vtool.diagnostics.render.as_json` gives, and `--format json` prints.

    Raises:
        OSError: the page cannot be written.
    """
    return write_page(render(document), output)


def render(document: Mapping[str, Any]) -> str:
    """Return the page. The same document gives the same bytes."""
    here = Path(__file__).parent
    models = [_model(result, at) for at, result in enumerate(document["results"], 1)]
    return load_template("watch.html.j2", here, here.parent / "load_check", here.parent).render(
        version=__version__,
        made_by=document["tool"],
        title=models[0]["name"] if len(models) == 1 else plural(len(models), "model"),
        summary=document["summary"],
        models=models,
    )


def _model(result: Mapping[str, Any], number: int) -> dict[str, Any]:
    seen: Mapping[str, Any] = result.get("details", {}).get("watch", {})
    model: Mapping[str, Any] = seen.get("model", {})
    findings = sorted(
        result["findings"], key=lambda finding: _SEVERITIES.index(finding["severity"])
    )
    return {
        "id": f"model-{number}",
        "name": model.get("class") or "No model",
        "subject": result["subject"],
        "verdict": result["verdict"],
        "seen": seen,
        "facts": [*model.items(), *seen.get("process", {}).items()],
        "findings": [_finding(finding) for finding in findings],
        "rows": [_row(row) for row in seen.get("rows", ())],
        "steps": _steps(seen.get("bars", ())),
        "documents": _documents(seen.get("documents", ())),
        "checks": _checks(result),
    }


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    rule = RULES.get(finding["rule"])
    return {
        **{key: finding[key] for key in ("rule", "code", "severity", "message")},
        "summary": rule.summary if rule else "",
        "help": finding.get("help") or (rule.fix if rule else None),
    }


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's tokens, each with a shade: its weight beside the largest of the row."""
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
                "text": str(token["text"]).replace("\n", "⏎\n"),
                "learnt": token["weight"] is not None,
                "other": token.get("learnt"),
                "weight": token["weight"],
                "down": (token["weight"] or 0) < 0,
                "shade": round(0.12 + 0.5 * abs(token["weight"] or 0) / largest, 2),
            }
            for token in tokens
        ],
    }


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


def _checks(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every check with how it ended and why, those that failed first."""
    details: Mapping[str, Mapping[str, Any]] = result.get("details", {})
    rows = []
    for name, state in result["checks"].items():
        rule, told = RULES.get(name), details.get(name, {})
        measured: Mapping[str, Any] = told.get("measured", {})
        rows.append(
            {
                "name": name,
                "code": rule.code if rule else "",
                "summary": rule.summary if rule else "",
                "state": state,
                "reason": told.get("reason") or "",
                "measured": "; ".join(f"{key}: {_value(value)}" for key, value in measured.items()),
            }
        )
    return sorted(rows, key=lambda row: _STATES.index(row["state"]))


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
