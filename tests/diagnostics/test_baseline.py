"""A baseline: only what is new counts."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.diagnostics.baseline import _entry, compare_with_baseline, fingerprint
from vtool.diagnostics.result import Result, exit_code

STALE = Diagnostic(
    "nonfinite-value",
    "3 NaN at line 508",
    parameter="q",
    tensors=("q.weight",),
    origin=Origin("bert.py", 508),
)
WARNING = Diagnostic("no-config", "none")
NOTE = Diagnostic("ignored-setting", "x")


def result(
    *findings: Diagnostic, subject: str = "vllm:BertModel", verdict: str = "unsafe"
) -> Result:
    failed = any(finding.rule == "nonfinite-value" for finding in findings)
    state = "failed" if failed else "passed"
    return Result(subject, verdict, {"nonfinite-value": state}, findings)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known.json"


def test_the_first_time_todays_findings_are_recorded(file: Path) -> None:
    compared = compare_with_baseline([result(STALE, WARNING, NOTE)], file)
    assert compared.recorded
    assert [entry["rule"] for entry in json.loads(file.read_text())["findings"]] == [
        "no-config",
        "nonfinite-value",
    ]
    assert exit_code(compared.results) == 0
    assert compared.lines(file) == [
        f"baseline: 2 findings recorded in {file}; from now on only others count"
    ]


def test_known_findings_become_notes_and_stay_visible(file: Path) -> None:
    compare_with_baseline([result(STALE)], file)
    compared = compare_with_baseline([result(STALE, NOTE)], file)
    (one,) = compared.results
    assert [finding.severity for finding in one.findings] == ["note", "note"]
    assert one.findings[0].message == "3 NaN at line 508 (known: in the baseline)"
    assert (one.verdict, one.checks) == ("unsafe", {"nonfinite-value": "failed"})
    assert exit_code(compared.results) == 0
    assert (compared.known, compared.gone) == (1, ())


@pytest.mark.parametrize(
    "moved",
    [
        replace(STALE, origin=Origin("bert.py", 511, 4), message="3 NaN at line 511"),
        replace(STALE, message="17 NaN at line 508"),
        replace(STALE, help="other words", seen="other"),
    ],
)
def test_moved_lines_and_other_counts_are_the_same_finding(file: Path, moved: Diagnostic) -> None:
    compare_with_baseline([result(STALE)], file)
    compared = compare_with_baseline([result(moved)], file)
    assert exit_code(compared.results) == 0
    assert not compared.gone


def test_another_environment_is_the_same_finding(file: Path) -> None:
    compare_with_baseline(
        [
            result(
                replace(STALE, origin=Origin("/a/lib/python3.11/site-packages/vllm/bert.py", 508))
            )
        ],
        file,
    )
    compared = compare_with_baseline(
        [result(replace(STALE, origin=Origin("/b/lib/python3.12/site-packages/vllm/bert.py", 9)))],
        file,
    )
    assert exit_code(compared.results) == 0


@pytest.mark.parametrize("place", ["src/x.py", "../src/x.py"])
def test_another_checkout_is_the_same_finding(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "work").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name / "work")
        compared = compare_with_baseline(
            [result(replace(STALE, origin=Origin(os.path.abspath(place), 3)))], file
        )
    assert exit_code(compared.results) == 0
    assert not compared.gone
    elsewhere = replace(STALE, origin=Origin(os.path.abspath("src/y.py"), 3))
    assert exit_code(compare_with_baseline([result(elsewhere)], file).results) == 1


@pytest.mark.parametrize(
    "new",
    [
        replace(STALE, parameter="k"),
        replace(STALE, tensors=("layers.1.q.weight",)),
        replace(STALE, origin=Origin("other.py", 508)),
        replace(STALE, message="Inf at line 508"),
        Diagnostic("bad-header", "3 NaN at line 508"),
    ],
)
def test_what_differs_is_new_and_what_it_replaced_is_gone(file: Path, new: Diagnostic) -> None:
    compare_with_baseline([result(STALE)], file)
    compared = compare_with_baseline([result(new)], file)
    assert exit_code(compared.results) == 1
    assert compared.gone == ("vllm:BertModel: nonfinite-value: 3 NaN at line 508",)
    assert (
        compared.lines(file)[1]
        == "baseline: gone: vllm:BertModel: nonfinite-value: 3 NaN at line 508"
    )


def test_as_many_alike_are_known_as_were_recorded(file: Path) -> None:
    compare_with_baseline([result(STALE)], file)
    compared = compare_with_baseline(
        [result(STALE, replace(STALE, origin=Origin("bert.py", 600)))], file
    )
    assert [finding.severity for finding in compared.results[0].findings] == ["note", "error"]


OF_CLASS = Diagnostic(
    "stale-reference",
    "vllm:BertModel: 2 parameters hold bytes of what came later: q, k",
    parameter="q",
    parameters=("q", "k"),
    tensors=("q.weight", "k.weight"),
    origin=Origin("bert.py", 508),
)


def of_class(*findings: Diagnostic) -> Result:
    return Result("vllm:BertModel", "unsafe", {findings[0].rule: "failed"}, findings)


def test_a_finding_about_parameters_is_known_by_them_in_any_order_and_any_words(file: Path) -> None:
    compare_with_baseline([of_class(OF_CLASS)], file)
    other = replace(
        OF_CLASS,
        message="vllm:BertModel: k and q hold bytes of what came later; reached by reload_weights",
        parameter="k",
        parameters=("k", "q"),
        tensors=("k.weight",),
        origin=Origin("bert.py", 514),
    )
    compared = compare_with_baseline([of_class(other)], file)
    assert exit_code(compared.results) == 0
    assert not compared.gone
    assert fingerprint("vllm:BertModel", other) == fingerprint("vllm:BertModel", OF_CLASS)


@pytest.mark.parametrize(
    "other",
    [
        replace(OF_CLASS, parameters=("q", "k", "v")),
        replace(OF_CLASS, parameters=("q",)),
        replace(OF_CLASS, rule="retained-memory", severity="error"),
        replace(OF_CLASS, origin=Origin("roberta.py", 508)),
    ],
)
def test_one_parameter_more_or_less_is_another_finding(file: Path, other: Diagnostic) -> None:
    compare_with_baseline([of_class(OF_CLASS)], file)
    assert exit_code(compare_with_baseline([of_class(other)], file).results) == 1
    assert fingerprint("vllm:BertModel", other) != fingerprint("vllm:BertModel", OF_CLASS)
    assert fingerprint("vllm:Other", OF_CLASS) != fingerprint("vllm:BertModel", OF_CLASS)


def test_what_threads_find_by_chance_is_known_by_its_rule_and_never_gone(file: Path) -> None:
    chance = replace(OF_CLASS, by_chance=True)
    compare_with_baseline([of_class(chance)], file)
    others = [
        replace(chance, parameters=("v",), origin=Origin("bert.py", number)) for number in (1, 2)
    ]
    compared = compare_with_baseline([of_class(*others)], file)
    assert exit_code(compared.results) == 0
    assert compared.known == 2
    assert not compared.gone
    passed = Result("vllm:BertModel", "clean", {"stale-reference": "passed"})
    assert not compare_with_baseline([passed], file).gone
    assert (
        exit_code(
            compare_with_baseline([of_class(replace(chance, rule="never-loaded"))], file).results
        )
        == 1
    )
    assert fingerprint("vllm:BertModel", chance) == fingerprint("vllm:BertModel", others[0])


def test_a_file_of_before_parameters_were_recorded_still_knows_its_findings(file: Path) -> None:
    compare_with_baseline([of_class(replace(OF_CLASS, parameters=None))], file)
    assert '"parameters"' not in file.read_text()
    compared = compare_with_baseline([of_class(OF_CLASS)], file)
    assert exit_code(compared.results) == 0
    assert not compared.gone


@pytest.mark.parametrize("verdict", ["failed", "not-run"])
def test_nothing_is_gone_of_what_was_not_judged(file: Path, verdict: str) -> None:
    compare_with_baseline([result(STALE), result(STALE, subject="vllm:Other")], file)
    assert not compare_with_baseline([result(verdict=verdict)], file).gone


@pytest.mark.parametrize("checks", [{"bad-header": "passed"}, {"nonfinite-value": "not-run"}])
def test_nothing_is_gone_that_was_not_looked_for(file: Path, checks: dict[str, str]) -> None:
    compare_with_baseline([result(STALE)], file)
    assert not compare_with_baseline([replace(result(verdict="clean"), checks=checks)], file).gone
    assert compare_with_baseline(
        [replace(result(verdict="clean"), checks={"nonfinite-value": "passed"})], file
    ).gone


@pytest.mark.parametrize(
    ("finding", "verdict"),
    [
        (Diagnostic("unknown-subject", "no class `BertModl`"), "not-run"),
        (Diagnostic("load-failed", "it was ended by SIGSEGV"), "failed"),
        # of a folder, whose files are in order
        (Diagnostic("unusable-interpreter", "it cannot be started"), "failed"),
        (STALE, "failed"),
    ],
)
def test_what_could_not_be_checked_is_never_known(
    file: Path, finding: Diagnostic, verdict: str
) -> None:
    compared = compare_with_baseline([result(finding, verdict=verdict)], file)
    assert json.loads(file.read_text())["findings"] == []
    assert compared.results[0].findings == (finding,)
    file.write_text(json.dumps({"version": 1, "findings": [_entry("vllm:BertModel", finding)]}))
    assert compare_with_baseline([result(finding, verdict=verdict)], file).results[0].findings == (
        finding,
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"version": 2, "findings": []}',
        '{"version": 1, "findings": [{"rule": 1}]}',
        '{"version": 1, "findings": [{"subject": "", "rule": "", "message": "", "parameters": 1}]}',
        "\xff\xfe",
        "[" * 100_000,
    ],
)
def test_what_is_no_baseline_is_refused(file: Path, content: str) -> None:
    file.write_text(content, encoding="latin-1")
    with pytest.raises(Findings, match="unusable-baseline"):
        compare_with_baseline([result(STALE)], file)
    assert file.read_text(encoding="latin-1") == content


def test_a_pipe_is_no_baseline_and_waited_for_by_nobody(file: Path) -> None:
    os.mkfifo(file)
    with pytest.raises(Findings, match=r"unusable-baseline.*it is no file"):
        compare_with_baseline([result(STALE)], file)


def test_a_baseline_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Findings, match="cannot be written"):
        compare_with_baseline([result(STALE)], tmp_path / "no" / "such" / "folder.json")
