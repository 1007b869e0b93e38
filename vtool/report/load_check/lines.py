"""Findings as the page shows them: those of one rule at one line are one."""

from collections.abc import Mapping, Sequence
from typing import Any

from vtool.diagnostics import RULES
from vtool.diagnostics.by_line import in_other_words

Finding = Mapping[str, Any]
_SEVERITIES = ("error", "warning", "note")


def own_lines(document: Mapping[str, Any]) -> list[list[list[Finding]]]:
    """Return for each result its findings, in a list for each line that it has some at."""
    own: list[list[list[Finding]]] = [[] for _ in document["results"]]
    for line in document["by_line"]:
        of_line: dict[int, list[Finding]] = {}
        for one in line["findings"]:
            finding = document["results"][one["result"]]["findings"][one["finding"]]
            of_line.setdefault(one["result"], []).append(finding)
        for result, findings in of_line.items():
            own[result].append(findings)
    return own


def finding_parts(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the page's parts for one subject's findings at one line, the gravest first."""
    first = findings[0]
    names = dict.fromkeys(name for one in findings for name in _parameters(one))
    return {
        **_parts(first),
        "parameters": list(names),
        "tensors": list(dict.fromkeys(name for one in findings for name in one.get("tensors", ()))),
        "others": [one["message"] for one in findings[1:]],
    }


def line_parts(
    document: Mapping[str, Any], subjects: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the page's parts for each line, the gravest first, then those of most subjects.

    Args:
        subjects: what the page knows of each subject (`id`, `name`, `verdict`), by the place of its
            result.
    """
    shown = []
    for number, line in enumerate(document["by_line"], 1):
        members: dict[int, list[Finding]] = {}
        for one in line["findings"]:
            finding = document["results"][one["result"]]["findings"][one["finding"]]
            members.setdefault(one["result"], []).append(finding)
        message = _text(line["findings"][0], document)
        shown.append(
            {
                **_parts(line),
                "id": f"line-{number}",
                "message": message,
                "members": [
                    _member(subjects[at], findings, message, line["severity"])
                    for at, findings in members.items()
                ],
            }
        )
    return sorted(shown, key=lambda one: (_SEVERITIES.index(one["severity"]), -len(one["members"])))


def _member(
    subject: Mapping[str, Any], findings: Sequence[Finding], message: str, severity: str
) -> dict[str, Any]:
    """Return a subject of a line, with its own message where that is different."""
    texts = [_without(subject["name"], one["message"]) for one in findings]
    grades = [one["severity"] for one in findings]
    return {
        "id": subject["id"],
        "name": subject["name"],
        "verdict": subject["verdict"],
        "severity": grades[0] if grades[0] != severity else "",
        "texts": [text for text in texts if in_other_words(text, message) or len(texts) > 1],
    }


def _text(place: Mapping[str, int], document: Mapping[str, Any]) -> str:
    result = document["results"][place["result"]]
    return _without(result["subject"], result["findings"][place["finding"]]["message"])


def _without(subject: str, message: str) -> str:
    return message.removeprefix(f"{subject}: ")


def _parts(finding: Finding) -> dict[str, Any]:
    origin = finding.get("origin", {})
    place = ":".join(str(origin[part]) for part in ("file", "line", "column") if part in origin)
    rule = RULES.get(finding["rule"])
    names = ("rule", "code", "severity", "message", "parameter", "expected", "seen")
    return {
        **{key: finding.get(key) for key in names},
        "help": finding.get("help") or (rule.fix if rule else None),
        "tensors": finding.get("tensors", []),
        "place": place,
        "own_line": bool(origin.get("line")),
    }


def _parameters(finding: Finding) -> Sequence[str]:
    one = finding.get("parameter")
    return finding.get("parameters") or ([one] if one else [])
