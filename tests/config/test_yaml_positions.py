"""YAML files that are refused, whatever is done with them then, and the place of each error."""

from pathlib import Path

import pytest
import yaml

from tests.test_contents import POINTER
from vtool.config.load import load_run
from vtool.config.yaml_positions import read_yaml
from vtool.diagnostics import Diagnostic, Findings


def refused(folder: Path, text: str) -> list[Diagnostic]:
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(Findings) as caught:
        read_yaml(folder / "mine.yaml")
    assert caught.value.fatal
    assert {finding.rule for finding in caught.value.diagnostics} == {"bad-yaml"}
    return list(caught.value.diagnostics)


def places(found: list[Diagnostic]) -> list[tuple[int | None, int | None]]:
    return [
        (finding.origin.line, finding.origin.column) if finding.origin else (None, None)
        for finding in found
    ]


@pytest.mark.parametrize(
    "tag",
    ["!!binary aGk=", "!!set {a, b}", "!!omap [a: b]", "!!python/object:os.system x", "!mine x"],
)
def test_a_value_of_a_kind_that_no_setting_takes_is_named_at_its_place(
    tag: str, tmp_path: Path
) -> None:
    (found,) = refused(tmp_path, f"run: {{name: {tag}}}\n")
    assert tag.partition(" ")[0] in found.message
    assert found.origin is not None
    assert found.origin.line == 1


@pytest.mark.parametrize(
    "value",
    ["2026-01-01", "null", "~", "true", "1e-3", "0x1f", "=", "!!str 7", "[1, a]", "{a: b}", "''"],
)
def test_what_settings_are_made_of_is_read(value: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"run: {{name: {value}}}\n", encoding="utf-8")
    assert read_yaml(tmp_path / "mine.yaml").root.value[0][0].value == "run"


def test_all_keys_that_are_there_twice_are_named_in_lists_and_groups_too(tmp_path: Path) -> None:
    found = refused(tmp_path, "a: 1\nb: {c: 1, c: 2}\na: 2\nd:\n  - e: 1\n    e: 2\n")
    assert sorted(places(found)) == [(2, 11), (3, 1), (6, 5)]
    assert "the first is in line 1" in next(
        finding.message for finding in found if "`a`" in finding.message
    )


def test_columns_count_letters_and_not_bytes(tmp_path: Path) -> None:
    assert places(refused(tmp_path, "{größe: 图, a: 1, a: 2}\n")) == [(1, 18)]


def test_a_date_is_text_to_a_setting(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [digits, _self_]\nrun: {name: 2026-01-01}\n")
    assert load_run(str(tmp_path / "mine.yaml")).run.run.name == "2026-01-01"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("optim:\n  lr: 1\n\tname: x\n", 3, "a tab, where YAML takes spaces"),
        ("run:\n\tname: x\n", 2, "a tab, where YAML takes spaces"),
        ("a: 1\nbetas: [0.9,\n  0.98\ntrain: {steps: 9}\n", 2, "is not closed with ]"),
        ("train: {steps: 9\noptim:\n  lr: 1\n", 1, "is not closed with }"),
        ('a: 1\nname: "adamw\nb: 2\nc: 3\n', 2, "quotation mark here is not closed"),
        ("a: 1\noptim\n  lr: 1\nb: 2\n", 2, "no colon and space behind this key"),
        ("optim:\n  lr: 1\n   name: x\n", 3, "indented deeper than the one above"),
        ("a: see: there\n", 1, "put the value in quotes"),
        ("a: 1\nrun: {name: a: b}\n", 2, "a second colon in one value: put it in quotes"),
        ("optim:\n  lr 1.0e-4\n  eps: 1\n", 2, "there is no colon and space behind this key"),
        ("optim:\n  lr:1.0e-4\n  # x\n  eps: 1\n", 2, "there is no colon and space behind"),
        ("defaults [rows]\noptim:\n  lr: 1\n", 1, "there is no colon and space behind this key"),
        ("run:\n  name: x: y\n", 2, "a second colon in one value: put the value in quotes"),
        ("a:\n  b: 1\n    c: 2\n", 3, "this line is indented deeper than the one above it"),
        ("a:\n    b: 1\n  c: 2\n", 3, "this line is indented as no key above it is"),
        ("a: 1\nb: @x\n", 2, "a value cannot begin with @: put it in quotes"),
        ('a: 1\nb: "x" y\n', 2, "text behind the quotation mark that closes the value"),
        ("a: 1\ntrain: {steps: 9 epochs: 2}\n", 2, "a comma before the next key"),
    ],
)
def test_the_line_that_is_wrong_is_named_and_what_is_wrong_with_it(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(Findings) as caught:
        read_yaml(path)
    (found,) = caught.value.diagnostics
    assert found.rule == "bad-yaml"
    assert said in found.message
    assert found.origin is not None
    assert found.origin.line == line


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="not run: PyYAML is without libyaml")
def test_a_tab_between_a_key_and_its_value_is_read(tmp_path: Path) -> None:
    # YAML allows it (1.2.2, 6.2), and only PyYAML's own parser refuses it
    (tmp_path / "mine.yaml").write_text("defaults: [rows]\ntrain:\n  steps:\t9\n")
    (tmp_path / "rows.jsonl").touch()
    rows = f"data.train=[{{format:messages,path:'{tmp_path / 'rows.jsonl'}'}}]"
    assert load_run(str(tmp_path / "mine.yaml"), (rows,)).run.train.steps == 9


@pytest.mark.parametrize(
    ("text", "place", "value"),
    [
        ("run: {dir: ${oc.env:DATA}/x}\n", (1, 12), "${oc.env:DATA}/x"),
        ("data: {train: [${oc.env:DATA}/x.jsonl]}\n", (1, 16), "${oc.env:DATA}/x.jsonl"),
        ("data: {train: [\n  /a/${oc.env:B}/c ]}\n", (2, 3), "/a/${oc.env:B}/c"),
        ("run:\n  dir: ${oc.env: DATA}/x\n", (2, 8), "${oc.env: DATA}/x"),
        ("a: [1, '${b}', ${c}]\n", (1, 16), "${c}"),
    ],
)
def test_a_reference_that_needs_quotes_is_answered_with_them(
    tmp_path: Path, text: str, place: tuple[int, int], value: str
) -> None:
    found = refused(tmp_path, text)
    assert places(found) == [place]
    assert found[0].help == f'write "{value}"'


def test_a_recipe_that_is_a_pointer_of_git_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(POINTER)
    with pytest.raises(Findings) as caught:
        read_yaml(tmp_path / "a.yaml")
    (found,) = caught.value.diagnostics
    assert (found.rule, found.help) == ("unreadable-file", "in its repository: git lfs pull")


@pytest.mark.parametrize("text", ["dir: ${oc.env:DATA}/x\n", 'run: {dir: "${oc.env:DATA}/x"}\n'])
def test_a_reference_that_needs_no_more_quotes_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert "${oc.env:DATA}/x" in read_yaml(tmp_path / "a.yaml").text
