"""Splits and mixtures that are not possible: each one finding, with its place and what to do."""

import os
from pathlib import Path

import pytest

from vtool.config.load import examine
from vtool.diagnostics import Diagnostic

HELD = ("data.validation=[]", "data.test=[]")
A = "{format: messages, path: rows/a.jsonl}"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    for name in "ab":
        (tmp_path / f"rows/{name}.jsonl").touch()
    (tmp_path / "linked.jsonl").symlink_to(tmp_path / "rows/a.jsonl")


def found(*overrides: str) -> tuple[Diagnostic, ...]:
    return examine("digits", overrides).findings


def only(*overrides: str) -> Diagnostic:
    (finding,) = found(*overrides)
    assert finding.remedy
    assert finding.origin
    return finding


def sources(*entries: str) -> str:
    return f"data.train=[{', '.join(entries)}]"


def more(entry: str, settings: str) -> str:
    return entry.replace("}", f", {settings}}}")


@pytest.mark.parametrize(
    "split", ["{validation: 0.05}", "{test: 0.9}", "{validation: 0.4, test: 0.5999}"]
)
def test_fractions_that_leave_rows_are_no_finding(split: str) -> None:
    assert found(*HELD, f"data.split={split}", "evaluation.every_steps=null") == ()


@pytest.mark.parametrize(("validation", "test"), [("0.5", "0.5"), ("0.9", "0.1"), ("0.7", "0.7")])
def test_fractions_that_leave_no_row_to_train_on(validation: str, test: str) -> None:
    finding = only(*HELD, f"data.split={{validation: {validation}, test: {test}}}")
    assert (finding.rule, finding.parameter) == ("split-conflict", "data.split")
    assert f"data.split.validation={validation}" in finding.message


@pytest.mark.parametrize("value", ["0", "-0.1", "1", "1.5"])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_fraction_that_is_none(split: str, value: str) -> None:
    finding = only(*HELD, f"data.split.{split}={value}")
    assert (finding.rule, finding.parameter) == ("out-of-range", f"data.split.{split}")
    assert "above 0 and below 1" in finding.message


@pytest.mark.parametrize(
    "setting",
    ["weight: 0", "weight: -1", "repeat: 0", "repeat: -1", "limit: 0", "limit: -3"],
)
def test_a_part_that_is_none(setting: str) -> None:
    finding = only(sources(more(A, setting)))
    assert finding.rule == "out-of-range"
    assert finding.parameter == f"data.train.0.{setting.partition(':')[0]}"


def test_rows_of_its_own_and_rows_that_are_held_back() -> None:
    one, two = found("data.split={validation: 0.1, test: 0.1}")
    assert {one.rule, two.rule} == {"split-conflict"}
    assert {one.parameter, two.parameter} == {"data.split.validation", "data.split.test"}
    assert "data.test has rows of its own" in f"{one.message} {two.message}"
    assert only("data.split.validation=0.1", "data.test=[]").parameter == "data.split.validation"
    assert found("data.split.validation=0.1", "data.validation=[]") == ()


def test_a_key_that_groups_rows_which_have_none_and_one_that_groups_nothing() -> None:
    finding = only(*HELD, "data.split={validation: 0.1, group: case_id}")
    assert (finding.rule, finding.parameter) == ("split-conflict", "data.split.group")
    assert "digits" in finding.message
    assert found(sources(A), *HELD, "data.split={validation: 0.1, group: case_id}") == ()
    unused = only("data.split.group=case_id")
    assert (unused.rule, unused.severity) == ("ignored-setting", "note")


@pytest.mark.parametrize(
    "again",
    [
        A,
        "{format: auto, path: rows/a.jsonl}",
        "{format: llava, path: ./rows/../rows/a.jsonl, image_folder: rows}",
        "{format: messages, path: linked.jsonl, name: other, limit: 3}",
    ],
)
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_source_that_is_listed_twice_by_whichever_path(split: str, again: str) -> None:
    other = "{format: messages, path: rows/b.jsonl}"
    train = () if split == "train" else (sources(other),)
    finding = only(f"data.{split}=[{A}, {again}]", *train)
    assert (finding.rule, finding.parameter) == ("source-listed-twice", f"data.{split}.1")
    assert f"data.{split}.0" in finding.message
    assert ("repeat: 2" in (finding.help or "")) == (split == "train")


def test_sources_of_one_file_that_are_not_the_same() -> None:
    Path("dataset_info.json").write_text("{}")
    info = "{format: llama_factory, path: dataset_info.json, dataset: %s}"
    assert found(sources(info % "cats", info % "dogs")) == ()
    assert only(sources(info % "cats", info % "cats")).rule == "source-listed-twice"
    assert found(sources(A, A.replace("a.jsonl", "b.jsonl"))) == ()
    assert os.path.samefile("linked.jsonl", "rows/a.jsonl")


def test_a_name_that_two_sources_have() -> None:
    finding = only(sources(more(A, "name: x"), "{format: messages, path: rows/b.jsonl, name: x}"))
    assert (finding.rule, finding.parameter) == ("source-listed-twice", "data.train.1.name")


def test_weights_are_given_to_all_sources_or_to_none() -> None:
    other = "{format: messages, path: rows/b.jsonl}"
    finding = only(sources(more(A, "weight: 2"), other))
    assert (finding.rule, finding.parameter) == ("mixture-conflict", "data.train.1")
    both = only(sources(more(A, "weight: 2, repeat: 2"), more(other, "weight: 1")))
    assert (both.rule, both.parameter) == ("mixture-conflict", "data.train.0")
    assert found(sources(more(A, "weight: 2"), more(other, "weight: 0.5, limit: 5"))) == ()
    assert found(sources(more(A, "repeat: 2.5"), other)) == ()
    alone = only(sources(more(A, "weight: 2")))
    assert (alone.rule, alone.severity) == ("ignored-setting", "note")


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("part", ["weight", "repeat"])
def test_rows_that_are_evaluated_have_no_part(split: str, part: str) -> None:
    finding = only(f"data.{split}=[{more(A, f'{part}: 2')}]")
    assert (finding.rule, finding.parameter) == ("mixture-conflict", f"data.{split}.0.{part}")
    assert found(f"data.{split}=[{more(A, 'limit: 2, name: few')}]") == ()


def test_validation_that_is_held_back_is_validation() -> None:
    held = ("data.validation=[]", "evaluation.every_steps=10")
    assert only(*held).rule == "evaluation-without-data"
    assert found(*held, "data.split.validation=0.1") == ()
