"""Findings of one rule at one source line are one finding, in every format, with its subjects."""

import io
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from vtool.diagnostics import Diagnostic, Origin
from vtool.diagnostics.baseline import compare_with_baseline
from vtool.diagnostics.by_line import by_line, count_lines
from vtool.diagnostics.render import render_results
from vtool.diagnostics.result import Result, count, exit_code

RULES = ("stale-reference", "unwritten-parameter", "partly-written-parameter")
SEVERITIES = ("error", "warning", "note")


def stale(subject: str, line: int | None = 508, **more: object) -> Diagnostic:
    origin = Origin("bert.py", line) if line else None
    finding = Diagnostic("stale-reference", f"{subject}: bytes of what came later", origin=origin)
    return replace(finding, **more)  # type: ignore[arg-type]


def unsafe(subject: str, *findings: Diagnostic) -> Result:
    return Result(subject, "unsafe", {"stale-reference": "failed"}, findings)


def printed(results: list[Result], form: str, command: str = "load-check") -> str:
    stream = io.StringIO()
    render_results(results, form, command=command, stream=stream)
    return stream.getvalue()


SHARED = [unsafe(name, stale(name)) for name in ("vllm:A", "vllm:B", "vllm:C")]


def test_subjects_that_share_a_line_are_one_finding_with_their_names_under_it() -> None:
    assert printed(SHARED, "full") == (
        "error[stale-reference VT401]: vllm:A: bytes of what came later; likewise 2 more subjects\n"
        "  --> bert.py:508\n"
        "  - vllm:A\n"
        "  - vllm:B\n"
        "  - vllm:C\n"
        "  help: Copy each tensor into its parameter before asking for the next one, or keep a"
        " clone: kept[name] = tensor.clone(). (vtool explain stale-reference)\n\n"
        "1 error (3 by subject); checks: 3 failed\n"
    )
    assert printed(SHARED, "concise").splitlines()[0] == (
        "bert.py:508: error stale-reference (VT401): vllm:A: bytes of what came later; likewise 2"
        " more subjects (vllm:B; vllm:C)"
    )
    (annotation,) = (
        line for line in printed(SHARED, "github").splitlines() if line.startswith("::")
    )
    assert "%0A- vllm:A%0A- vllm:B%0A- vllm:C" in annotation


def test_parameters_that_share_a_line_are_one_finding_too() -> None:
    findings = [
        stale("vllm:A", message=f"vllm:A: {name} is wrong", parameter=name) for name in "abc"
    ]
    text = printed([unsafe("vllm:A", *findings)], "full")
    assert "vllm:A: a is wrong; likewise 2 more findings\n" in text
    assert "  - a is wrong\n  - b is wrong\n  - c is wrong\n" in text
    assert text.endswith("vllm:A: 1 error (3 by subject); checks: 1 failed\n")
    (line,) = by_line([unsafe("vllm:A", *findings)])
    assert line.merged.parameters == ("a", "b", "c")


@pytest.mark.parametrize(
    "other",
    [
        stale("vllm:B", line=509),
        stale("vllm:B", origin=Origin("roberta.py", 508)),
        stale("vllm:B", rule="retained-memory"),
        stale("vllm:B", line=None),
    ],
)
def test_another_line_another_file_or_another_rule_is_another_finding(other: Diagnostic) -> None:
    one, two = unsafe("vllm:A", stale("vllm:A")), Result("vllm:B", "unsafe", {}, (other,))
    assert len(by_line([one, two])) == 2
    assert len(by_line([two, two])) == (2 if other.origin is None else 1)


def test_a_subject_with_a_message_of_its_own_has_it_after_its_name() -> None:
    other = unsafe("vllm:B", stale("vllm:B", message="vllm:B: 3 others"))
    text = printed([SHARED[0], other], "full")
    assert "  - vllm:A\n  - vllm:B: 3 others\n" in text


def test_what_a_baseline_knows_of_one_class_is_new_of_another(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    compare_with_baseline(SHARED[:1], file)
    results = list(compare_with_baseline(SHARED, file).results)
    text = printed(results, "full")
    assert text.startswith("error[stale-reference VT401]: vllm:B: ")
    known = "  - vllm:A: bytes of what came later (known: in the baseline) (note)\n"
    assert f"  - vllm:B\n  - vllm:C\n{known}" in text
    assert exit_code(results) == 1
    assert exit_code(compare_with_baseline(SHARED[:1], file).results) == 0


def test_json_keeps_each_subjects_findings_and_adds_those_of_lines() -> None:
    document = json.loads(printed(SHARED, "json"))
    assert document["version"] == 1
    assert [len(result["findings"]) for result in document["results"]] == [1, 1, 1]
    assert document["summary"]["errors"] == 3
    (line,) = document["by_line"]
    assert line["subjects"] == ["vllm:A", "vllm:B", "vllm:C"]
    assert line["origin"] == {"file": "bert.py", "line": 508}
    places = [(one["result"], one["finding"]) for one in line["findings"]]
    assert places == [(0, 0), (1, 0), (2, 0)]
    assert len({one["fingerprint"] for one in line["findings"]}) == 3
    assert document["summary"]["by_line"] == {"errors": 1, "warnings": 0, "notes": 0}


def test_notes_that_are_not_printed_are_counted_and_what_a_baseline_knows_is_one(
    tmp_path: Path,
) -> None:
    """A whole framework has results whose failed checks have nothing but known findings."""
    file = tmp_path / "known.json"
    compare_with_baseline(SHARED, file)
    stream = io.StringIO()
    results = list(compare_with_baseline(SHARED, file).results)
    render_results(results, "full", command="load-check", stream=stream, notes=False)
    assert stream.getvalue() == "1 note (3 by subject); checks: 3 failed\n"
    stream = io.StringIO()
    new = compare_with_baseline([*SHARED, unsafe("vllm:D", stale("vllm:D"))], file).results
    render_results(list(new), "full", command="load-check", stream=stream, notes=False)
    assert "error[stale-reference VT401]: vllm:D: " in stream.getvalue()
    assert "  - vllm:A: bytes of what came later (known: in the baseline) (note)\n" in (
        stream.getvalue()
    )


def test_commands_whose_subjects_share_no_code_are_as_they_were() -> None:
    assert printed(SHARED, "full", "verify").count("error[") == 3
    assert "by_line" not in json.loads(printed(SHARED, "json", "verify"))


@pytest.mark.parametrize("seed", range(100))
def test_every_format_counts_the_same_lines_and_the_status_is_that_of_the_findings(
    seed: int,
) -> None:
    draw = random.Random(seed)
    results = []
    for number in range(draw.randint(1, 6)):
        findings = [
            Diagnostic(
                draw.choice(RULES),
                f"subject {number}: {draw.choice('xyz')}",
                origin=draw.choice([None, Origin("a.py", 1), Origin("a.py", 2), Origin("b.py")]),
                severity=draw.choice(SEVERITIES),  # type: ignore[arg-type]
            )
            for _ in range(draw.randint(0, 4))
        ]
        errors = {one.rule for one in findings if one.severity == "error"}
        checks = {rule: "failed" if rule in errors else "passed" for rule in RULES}
        verdict = "unsafe" if errors else "clean"
        results.append(Result(f"subject {number}", verdict, checks, tuple(findings)))  # type: ignore[arg-type]
    lines = by_line(results)
    expected = count_lines(lines)
    assert _heads(r"(?m)^(error|warning|note)\[", printed(results, "full")) == expected
    assert _heads(r"(?m)^(?:\S+: )?(error|warning|note) \S+ \(VT", printed(results, "concise")) == (
        expected
    )
    annotated = printed(results, "github").replace("::notice", "::note")
    assert _heads(r"(?m)^::(error|warning|note) ", annotated) == expected
    document = json.loads(printed(results, "json"))
    listed = [one["severity"] for one in document["by_line"]]
    assert {f"{name}s": listed.count(name) for name in SEVERITIES} == expected
    assert document["summary"]["by_line"] == expected
    assert document["summary"] == count(results) | {"by_line": expected}
    # each finding of each subject is in exactly one of them
    places = sorted(
        (one["result"], one["finding"]) for line in document["by_line"] for one in line["findings"]
    )
    assert places == sorted(
        (at, place) for at, result in enumerate(results) for place, _ in enumerate(result.findings)
    )
    keys = [
        (line.first.rule, line.first.origin)
        for line in lines
        if line.first.origin and line.first.origin.line
    ]
    assert len(keys) == len(set(keys))
    assert (exit_code(results) == 1) == bool(expected["errors"])


def _heads(pattern: str, text: str) -> dict[str, int]:
    found = re.findall(pattern, text)
    return {f"{name}s": found.count(name) for name in SEVERITIES}
