"""The page, made from the JSON of `vtool load-check --format json` alone."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vtool.diagnostics import RULES
from vtool.report.files import inline_script, load_template
from vtool.report.load_check.lines import finding_parts, line_parts, own_lines
from vtool.report.replaceable import write_page
from vtool.version import __version__
from vtool.words import plural

_ORDER = ("unsafe", "failed", "not-run", "clean")
_SEVERITIES = ("error", "warning", "note")
_CELLS = {
    "error": ("✗", "error"),
    "warning": ("!", "warning"),
    "noted": ("•", "passed with a note"),
    "failed": ("✗", "failed"),
    "not-run": ("–", "not run"),
    "passed": ("✓", "passed"),
    "": ("", "not asked for"),
}
"""The mark and the word of a check, by how it ended or its worst severity."""
_FRAMEWORKS = ("vllm", "sglang", "transformers", "python")
_FILES = "files"
"""The word in place of a framework for folders, files and recipes."""


def write_load_check(document: Mapping[str, Any], output: Path) -> Path:
    """Write the page to `output`, and return `output`.

    Args:
        document: what `vtool.diagnostics.render.as_json` gives, and `--format json` prints.

    Raises:
        ValueError: another version of that layout.
        OSError: the page cannot be written.
    """
    return write_page(render_load_check_page(document), output)


def render_load_check_page(document: Mapping[str, Any]) -> str:
    """Return the page. The same document gives the same bytes."""
    if document.get("version") != 1:
        raise ValueError(
            f"this is version {document.get('version')!r} of the results' layout, and the page is"
            " made from version 1"
        )
    here = Path(__file__).parent
    results: Sequence[Mapping[str, Any]] = document["results"]
    rules = list(dict.fromkeys(rule for result in results for rule in result["checks"]))
    ranked = sorted(range(len(results)), key=lambda at: (_ORDER.index(results[at]["verdict"]), at))
    found = own_lines(document)
    subjects = [
        _subject(results[at], rules, number, document["tool"], found[at])
        for number, at in enumerate(ranked, 1)
    ]
    verdicts = [result["verdict"] for result in results]
    lines = line_parts(document, {at: subjects[place] for place, at in enumerate(ranked)})
    filters = {
        "verdict": [verdict for verdict in _ORDER if verdict in verdicts],
        "rule": [rule for rule in rules if any(line["rule"] == rule for line in lines)],
        "severity": [one for one in _SEVERITIES if any(line["severity"] == one for line in lines)],
        "framework": list(dict.fromkeys(subject["framework"] for subject in subjects)),
        "oracle": sorted({subject["oracle_kind"] for subject in subjects} - {""}),
    }
    script, digest = inline_script(here / "filter.js")
    return load_template("load_check.html.j2", here, here.parent).render(
        version=__version__,
        made_by=document["tool"],
        title=subjects[0]["name"] if len(subjects) == 1 else plural(len(subjects), "subject"),
        verdicts=[(verdict, verdicts.count(verdict)) for verdict in _ORDER],
        summary=document["summary"],
        rules=[(rule, RULES.get(rule), _counts(results, rule)) for rule in rules],
        subjects=subjects,
        lines=lines,
        filters=filters,
        script=script,
        script_digest=digest,
    )


def _counts(results: Sequence[Mapping[str, Any]], rule: str) -> dict[str, int]:
    states = [result["checks"].get(rule) for result in results]
    return {state: states.count(state) for state in ("passed", "failed", "not-run")}


def _subject(
    result: Mapping[str, Any],
    rules: Sequence[str],
    number: int,
    tool: Mapping[str, Any],
    lines: Sequence[Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    details = result.get("details", {})
    oracle = str(details.get("subject", {}).get("oracle") or "")
    framework = result["subject"].partition(":")[0]
    severities = [line[0]["severity"] for line in lines]
    return {
        "id": f"subject-{number}",
        "name": result["subject"],
        "verdict": result["verdict"],
        "framework": framework if framework in _FRAMEWORKS else _FILES,
        "oracle": oracle,
        "oracle_kind": _oracle_kind(oracle),
        "found": " ".join(
            dict.fromkeys(f"{one['severity']}:{one['rule']}" for one in result["findings"])
        ),
        "cells": [(rule, *_cell(result, rule)) for rule in rules],
        "findings": sorted(
            (finding_parts(line) for line in lines),
            key=lambda finding: _SEVERITIES.index(finding["severity"]),
        ),
        "counts": [(severity, severities.count(severity)) for severity in _SEVERITIES],
        "measured": [(rule, facts) for rule, found in details.items() if (facts := _facts(found))],
        "reasons": _reasons(result["checks"], details),
        "again": shlex.join(
            [
                "vtool",
                *tool["command"].split(),
                result["subject"],
                *_options(result["subject"], tool),
            ]
        ),
    }


def _oracle_kind(oracle: str) -> str:
    """Return the kind of oracle without the class's name, to choose subjects by.

    It is made of the words that `details.subject.oracle` has: `the names of transformers' X and its
    logits`.
    """
    names, compared, _ = oracle.partition(" and its ")
    if names.startswith("the names of transformers'"):
        names = "transformers' names"
    return f"{names} and outputs" if compared else names


def _options(subject: str, tool: Mapping[str, Any]) -> list[str]:
    """Return the options other than the subject; a checkpoint for a user's own classes alone."""
    return [
        word
        for word in tool.get("options", [])
        if subject.startswith("python:") or not word.startswith("--checkpoint=")
    ]


def _cell(result: Mapping[str, Any], rule: str) -> tuple[str, str, str]:
    """Return class, mark and word of a check: how it ended or, with findings, the worst severity.

    A check that a warning or a note leaves passed is no tick: what it says may be the defect.
    """
    state = result["checks"].get(rule, "")
    severities = [finding["severity"] for finding in result["findings"] if finding["rule"] == rule]
    if state in ("failed", "passed") and severities:
        worst = min(severities, key=_SEVERITIES.index)
        noted = "failed" if state == "failed" else "noted"  # failed: a baseline knows it
        state = noted if worst == "note" else worst
    return state or "unasked", *_CELLS[state]


def _facts(found: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the measured facts, as names and lines of text."""
    return [
        (name.replace("_", " "), _texts(value))
        for name, value in found.items()
        if name != "reason" and value not in (None, [], {})
    ]


def _texts(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{name}: {', '.join(_texts(item))}" for name, item in value.items()]
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]


def _reasons(
    checks: Mapping[str, str], details: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, list[str]]]:
    """Return each reason why checks were not run, with the checks that it is for."""
    reasons: dict[str, list[str]] = {}
    for rule, state in checks.items():
        if state == "not-run":
            reasons.setdefault(str(details.get(rule, {}).get("reason", "")), []).append(rule)
    if (
        len(reasons) == 2
        and "" in reasons
        and "not-run" in checks.values()
        and "passed" not in checks.values()
    ):
        # A subject that could not be judged has its one reason at the first check.
        (reason,) = (reason for reason in reasons if reason)
        return [(reason, list(checks))]
    return list(reasons.items())
