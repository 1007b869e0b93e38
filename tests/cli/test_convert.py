"""`vtool convert`, as a user runs it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.rows import write_rows
from vtool.cli.app import app

TALK = {
    "id": "7",
    "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}],
}
ODD = {"conversations": [{"from": "bing", "value": "Hi"}]}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["convert", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_what_was_read_and_what_was_left_is_reported() -> None:
    Path("rows.json").write_text(json.dumps([TALK, TALK]))
    code, out, _ = run("rows.json", "rows.parquet")
    assert code == 0
    assert out.splitlines()[:3] == [
        "2 rows of LLaVA or ShareGPT conversations; 2 written to rows.parquet",
        "  read: conversations (2)",
        "  left out, as it says nothing to the model: id (2)",
    ]


def test_refused_rows_are_findings_and_with_leave_notes() -> None:
    write_rows(Path("rows.jsonl"), [TALK, ODD])
    code, out, _ = run("rows.jsonl", "out.jsonl")
    assert code == 1
    assert "error[malformed-messages VT602]: rows.jsonl:2: " in out
    assert "1 of 2 rows cannot be converted; --max-dropped-rows is 0" in out
    assert not Path("out.jsonl").exists()
    code, out, _ = run("rows.jsonl", "out.jsonl", "--max-dropped-rows", "1")
    assert code == 0
    assert "note[malformed-messages VT602]: rows.jsonl:2: " in out
    assert len(Path("out.jsonl").read_text().splitlines()) == 1


def test_the_document_for_programs_has_the_counts() -> None:
    write_rows(Path("rows.jsonl"), [TALK, ODD])
    code, out, _ = run("rows.jsonl", "out.jsonl", "--max-dropped-rows", "1", "--format", "json")
    (result,) = json.loads(out)["results"]
    assert (code, result["verdict"]) == (0, "clean")
    assert result["details"]["conversion"] == {
        "rows": 2,
        "written": 1,
        "refused": 1,
        "keys": {"read": {"conversations": 1}, "left": {"id": 1}, "ignored": {}},
    }


def test_where_nothing_can_be_converted_the_status_is_2() -> None:
    write_rows(Path("rows.jsonl"), [TALK])
    for arguments in (
        ("gone.json", "out.jsonl"),
        ("rows.jsonl", "rows.jsonl"),
        ("rows.jsonl", "out.jsonl", "format=cauldron"),
    ):
        code, _, err = run(*arguments)
        assert code == 2, arguments
        assert "error[" in err
