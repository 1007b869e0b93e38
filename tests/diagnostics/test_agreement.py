"""Whatever checks end with, verdict, findings, counts and exit status say one thing."""

import io
import json
import random
import re

import pytest

from vtool.diagnostics import RULES, Diagnostic
from vtool.diagnostics.render import render_results, summary
from vtool.diagnostics.result import Result, count, exit_code

NAMES = (
    "unknown-key",
    "broken-row",
    "end-token-unsupervised",
    "loss-differs",
    "reference-too-long",
)
SEVERITIES = ("error", "warning", "note")


def outcome(draw: random.Random, subject: str) -> Result:
    """Return a result whose checks ended at random, each with the findings that it may have."""
    checks: dict[str, str] = {}
    findings: list[Diagnostic] = []
    details: dict[str, dict[str, str]] = {}
    for rule in draw.sample(NAMES, draw.randint(1, len(NAMES))):
        checks[rule] = draw.choice(("passed", "failed", "not-run"))
        allowed = SEVERITIES[:2] if checks[rule] == "failed" else SEVERITIES[2:]
        fewest = 1 if checks[rule] == "failed" else 0
        for number in range(draw.randint(fewest, 2)):
            findings.append(Diagnostic(rule, f"{subject}: {number}", severity=draw.choice(allowed)))
        if checks[rule] == "not-run" and draw.random() < 0.5:
            details[rule] = {"reason": "it was not asked for"}
    errors = any(finding.severity == "error" for finding in findings)
    looked = set(checks.values()) & {"passed", "failed"}
    verdict = "unsafe" if errors else "clean" if looked else "not-run"
    return Result(subject, verdict, checks, tuple(findings), details)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(200))
def test_every_format_counts_what_it_prints(seed: int) -> None:
    draw = random.Random(seed)
    results = [outcome(draw, f"subject {number}") for number in range(draw.randint(1, 3))]
    severities = [finding.severity for result in results for finding in result.findings]
    expected = {f"{name}s": severities.count(name) for name in SEVERITIES}
    printed = {
        form: _printed(results, form) for form in ("full", "concise", "github", "json", "sarif")
    }

    assert _heads(r"(?m)^(error|warning|note)\[", printed["full"]) == expected
    assert _heads(r"(?m)^(error|warning|note) ", printed["concise"]) == expected
    annotated = printed["github"].replace("::notice", "::note")
    assert _heads(r"(?m)^::(error|warning|note) ", annotated) == expected
    document = json.loads(printed["json"])
    listed = [one["severity"] for result in document["results"] for one in result["findings"]]
    assert {f"{name}s": listed.count(name) for name in SEVERITIES} == expected
    levels = [
        one["level"] for run in json.loads(printed["sarif"])["runs"] for one in run["results"]
    ]
    assert {f"{name}s": levels.count(name) for name in SEVERITIES} == expected

    last = summary(results)
    states = [state for result in results for state in result.checks.values()]
    for word, number in [(name[:-1], value) for name, value in expected.items()] + [
        (state.replace("-", " "), states.count(state)) for state in ("passed", "failed", "not-run")
    ]:
        assert (f"{number} {word}" in last) == bool(number), (last, word)
    for form in ("full", "concise", "github"):
        assert printed[form].endswith(last + "\n")
    missed = re.findall(r"not run[^:]*: (.*?)(?: \(|$)", printed["full"], re.M)
    judged = [result for result in results if result.verdict != "not-run"]
    named = sorted(name for line in missed for name in line.split(", ") if name in RULES)
    assert named == sorted(
        rule for one in judged for rule, state in one.checks.items() if state == "not-run"
    )
    assert document["summary"] == count(results)
    assert {key: document["summary"][key] for key in expected} == expected
    statuses = {result.verdict for result in results}
    status = exit_code(results)
    assert (status == 1) == bool(expected["errors"])
    assert (status == 1) == ("unsafe" in statuses)
    assert (status == 2) == (statuses == {"not-run"})


def _printed(results: list[Result], form: str) -> str:
    stream = io.StringIO()
    render_results(results, form, command="verify", stream=stream)
    return stream.getvalue()


def _heads(pattern: str, text: str) -> dict[str, int]:
    found = re.findall(pattern, text)
    return {f"{name}s": found.count(name) for name in SEVERITIES}


ERROR = Diagnostic("broken-row", "no JSON")
NOTE = Diagnostic("broken-row", "no JSON", severity="note")


@pytest.mark.parametrize(
    ("verdict", "checks", "findings"),
    [
        ("clean", {"broken-row": "failed"}, ()),
        ("unsafe", {"broken-row": "failed", "loss-differs": "failed"}, (ERROR,)),
        ("unsafe", {"broken-row": "passed"}, (ERROR,)),
        ("clean", {"broken-row": "failed"}, (ERROR,)),
        ("clean", {}, (ERROR,)),
    ],
)
def test_a_result_that_contradicts_itself_cannot_be_made(
    verdict: str, checks: dict[str, str], findings: tuple[Diagnostic, ...]
) -> None:
    with pytest.raises(AssertionError):
        Result("rows", verdict, checks, findings)  # type: ignore[arg-type]


def test_a_note_leaves_a_check_passed() -> None:
    result = Result("rows", "clean", {"broken-row": "passed"}, (NOTE,))
    assert exit_code([result]) == 0
