"""`vtool convert`, as a user runs it."""

import io
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.rows import write_rows
from vtool.cli.app import app


def png() -> bytes:
    Image.new("RGB", (32, 32), "red").save(file := io.BytesIO(), "PNG")
    return file.getvalue()


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


ASKED: dict[str, list[dict[str, Any]]] = {
    "rows.jsonl": [{"image": "a.png", "question": "What?", "answer": "A cat."}] * 2,
    "rows.json": [{"images": ["a.png", "b.png"], "Question": "it's?", "Answer": 3}],
    "metadata.jsonl": [{"file_name": "a.png", "query": "What?", "answer": "A cat."}],
    "instructions.jsonl": [
        {"image": "a.png", "instruction": "What?", "input": more, "output": "A cat."}
        for more in ("", "Shortly.")
    ],
    "keys.jsonl": [{"img_path": "a.png", "instruction": "Now <image>.", "output": "A cat."}],
    "prompts.jsonl": [{"image": "a.png", "prompt": "What?", "response": "A cat."}],
    "completions.jsonl": [{"image": "a.png", "prompt": "What?", "completion": "A cat."}],
    "text.jsonl": [{"question": "What?", "answer": "A cat."}],
    "rows.parquet": [{"image": {"bytes": png(), "path": None}, "question": "What?", "answer": "A"}],
}


@pytest.mark.parametrize("name", ASKED)
def test_a_command_makes_chats_of_questions_and_answers(name: str, tmp_path: Path) -> None:
    rows, folder = ASKED[name], Path("in here")
    folder.mkdir()
    for image in ("a.png", "b.png"):
        folder.joinpath(image).write_bytes(png())
    file = folder / name
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        text = json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows))
        file.write_text(text)
    code, _, said = run(str(file), "out.jsonl")
    assert code == 2
    assert "error[layout-not-certain VT649]" in said
    command = said.partition("give what it writes: ")[2].splitlines()[0]
    if shutil.which("jq") is None and command.startswith("jq"):
        pytest.skip("jq is not installed")
    command = command.replace("python -c", f"{shlex.quote(sys.executable)} -c", 1)
    subprocess.run(command, shell=True, check=True)
    end = ".parquet" if name.endswith(".parquet") else ".jsonl"
    code, out, _ = run(str(file.with_name(f"{file.stem}-rows{end}")), "out.jsonl")
    assert code == 0, out
    made = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert len(made) == len(rows)
    for row, was in zip(made, rows, strict=True):
        texts = [str(value) for key, value in was.items() if "im" not in key and "file" not in key]
        images = row.get("images", [])
        asked = "\n".join(filter(None, texts[:-1]))
        marks = "" if "<image>" in asked else "<image>" * len(images)
        assert [one["content"] for one in row["messages"]] == [marks + asked, texts[-1]]
        assert len(images) == (0 if name == "text.jsonl" else 2 if name == "rows.json" else 1)


def test_rows_that_are_a_layouts_own_get_no_command() -> None:
    row = {"images": ["a.png"], "instruction": "What?", "input": "<image>", "output": "A cat."}
    Path("a.png").write_bytes(png())
    write_rows(Path("rows.jsonl"), [row])
    assert run("rows.jsonl", "out.jsonl")[0] == 0
    # some of the rows are right: the others are named, each by itself
    write_rows(Path("some.jsonl"), [row, {**row, "input": ""}])
    assert "placeholder-mismatch VT605]: some.jsonl:2" in run("some.jsonl", "out2.jsonl")[1]
