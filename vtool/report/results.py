"""The parts of a page that are made of any command's results: findings and checks."""

from collections.abc import Mapping, Sequence
from typing import Any

from vtool.diagnostics import RULES

SEVERITIES = ("error", "warning", "note")
_STATES = ("failed", "not-run", "passed")


def findings_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a result's findings, the worst first, each with its rule's texts."""
    return [
        _finding(finding)
        for finding in sorted(
            result["findings"], key=lambda finding: SEVERITIES.index(finding["severity"])
        )
    ]


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    rule = RULES.get(finding["rule"])
    return {
        **{key: finding[key] for key in ("rule", "code", "severity", "message")},
        "summary": rule.summary if rule else "",
        "help": finding.get("help") or (rule.fix if rule else None),
    }


def checks_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every check with how it ended and why, those that failed first."""
    details: Mapping[str, Mapping[str, Any]] = result.get("details", {})
    rows = []
    for name, state in result["checks"].items():
        rule, detail = RULES.get(name), details.get(name, {})
        rows.append(
            {
                "name": name,
                "code": rule.code if rule else "",
                "summary": rule.summary if rule else "",
                "state": state,
                "reason": detail.get("reason") or "",
                "measured": _measured(detail.get("measured")),
            }
        )
    return sorted(rows, key=lambda row: _STATES.index(row["state"]))


def _measured(found: Any) -> str:
    if found is None:
        return ""
    if isinstance(found, Mapping):
        return "; ".join(f"{key}: {_value(value)}" for key, value in found.items())
    return _value(found)


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    return (
        ", ".join(map(str, value))
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )
