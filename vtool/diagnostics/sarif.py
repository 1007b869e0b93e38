"""Results as SARIF 2.1.0 (OASIS, 2020), which code scanning services take.

A finding without a file gets its subject for one, since GitHub refuses a whole upload for one
result without a place.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vtool.diagnostics.baseline import fingerprint, worded_fingerprint
from vtool.diagnostics.diagnostic import Diagnostic
from vtool.diagnostics.places import file_of
from vtool.diagnostics.printable import printable
from vtool.diagnostics.result import Result
from vtool.diagnostics.rule import Rule
from vtool.diagnostics.table import RULES
from vtool.version import __version__

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def as_sarif(results: Sequence[Result], command: str) -> dict[str, Any]:
    """Return a SARIF log with one run.

    Rules are those that were asked for or found; what was not run is a notification of the
    invocation.
    """
    named = {finding.rule for result in results for finding in result.findings}
    named |= {rule for result in results for rule in result.checks}
    rules = [rule for rule in RULES.values() if rule.name in named]
    place = {rule.name: number for number, rule in enumerate(rules)}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "vtool",
                        "semanticVersion": __version__,
                        "rules": [_rule(rule) for rule in rules],
                    }
                },
                "invocations": [_invocation(results, command, place)],
                "columnKind": "unicodeCodePoints",
                "results": [
                    _result(result.subject, finding, place)
                    for result in results
                    for finding in result.findings
                ],
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": f"{rule.summary} {rule.why}"},
        "help": {"text": f"{rule.fix}\n\nBad: {rule.bad}\nGood: {rule.good}"},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(subject: str, finding: Diagnostic, place: dict[str, int]) -> dict[str, Any]:
    file = file_of(finding.origin)
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(file if file is not None else subject or "vtool")}
        }
    }
    if file is not None and finding.origin is not None and finding.origin.line is not None:
        region = {"startLine": finding.origin.line, "startColumn": finding.origin.column}
        location["physicalLocation"]["region"] = {
            key: value for key, value in region.items() if value is not None
        }
    if finding.parameter is not None:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.parameter}]
    properties = {
        "subject": subject,
        "expected": finding.expected,
        "seen": finding.seen,
        "tensors": finding.tensors,
    }
    return {
        "ruleId": finding.code,
        "ruleIndex": place[finding.rule],
        "level": finding.severity,
        "message": {"text": finding.message + (f"\nhelp: {finding.help}" if finding.help else "")},
        "locations": [location],
        "partialFingerprints": {
            "vtoolFinding/v1": worded_fingerprint(subject, finding),
            "vtoolFinding/v2": fingerprint(subject, finding),
        },
        "properties": {key: value for key, value in properties.items() if value is not None},
    }


def _invocation(results: Sequence[Result], command: str, place: dict[str, int]) -> dict[str, Any]:
    notifications = [
        {
            "level": "warning",
            "message": {
                "text": f"{result.subject}: {rule} was not run"
                + (f": {printable(reason)}" if reason else "")
            },
            **(
                {"associatedRule": {"id": RULES[rule].code, "index": place[rule]}}
                if rule in RULES
                else {}
            ),
        }
        for result in results
        for rule, state in result.checks.items()
        if state == "not-run"
        for reason in (result.details.get(rule, {}).get("reason"),)
    ]
    return {
        "executionSuccessful": any(result.verdict != "not-run" for result in results),
        "commandLine": f"vtool {command}",
        "toolExecutionNotifications": notifications,
    }


def _uri(path: str) -> str:
    # A colon would read as a scheme: vllm:BertModel.
    # Bytes of a name that are no UTF-8 are halves of characters here.
    path = printable(path)
    return Path(path).as_uri() if Path(path).is_absolute() else quote(path, safe="/")
