"""`vtool predict` on the short run, as a user types it."""

import json
from pathlib import Path

import pytest

from tests.commands import run_vtool, vtool
from tests.runs import read_lines


@pytest.fixture
def work(trained: tuple[Path, str], tmp_path: Path) -> Path:
    """A folder of a test's own with the run in it, and a file of its first test rows."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/digits").symlink_to(trained[0] / "runs/digits")
    rows = []
    for number, row in enumerate(shown(tmp_path)):
        messages = [{"role": "user", "content": f"<image>{row['question']}"}]
        if number % 2:
            messages.append({"role": "assistant", "content": row["reference"]})
        rows.append({"messages": messages, "images": [f"runs/digits/{row['image']}"]})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def shown(folder: Path) -> list[dict[str, str]]:
    """The test rows whose images the run has kept, with the answers of its training's end."""
    return [row for row in read_lines(folder / "runs/digits/predictions.jsonl") if "image" in row]


def test_each_row_of_a_file_has_a_line_with_the_runs_own_answer(work: Path) -> None:
    done = run_vtool(work, "predict", "digits", "rows.jsonl", "--batch", "3")
    assert done.status == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    own = shown(work)
    assert [line["answer"] for line in lines] == [row["answer"] for row in own]
    assert [line["row"] for line in lines] == [f"rows.jsonl:{n + 1}" for n in range(len(own))]
    references = [row["reference"] if n % 2 else None for n, row in enumerate(own)]
    assert [line.get("reference") for line in lines] == references
    assert f"{len(own)} answers" in done.stderr


def test_answers_go_to_a_new_file_alone(work: Path) -> None:
    command = ("predict", "digits", "rows.jsonl", "--out", "answers.jsonl")
    done = run_vtool(work, *command)
    assert (done.status, done.stdout) == (0, "")
    before = (work / "answers.jsonl").read_text()
    assert len(before.splitlines()) == len(shown(work))
    assert "answers.jsonl: File exists" in vtool(work, *command, status=2)
    assert (work / "answers.jsonl").read_text() == before
    none = ("predict", "digits", "none.jsonl", "--out", "other.jsonl")
    assert "none.jsonl is not there" in vtool(work, *none, status=2)
    assert not (work / "other.jsonl").exists()


def test_a_row_that_cannot_be_asked_keeps_its_line_and_the_others_their_answers(
    work: Path,
) -> None:
    bad = [
        {"messages": [{"role": "user", "content": "<image>?"}], "images": ["none.png"]},
        {"messages": [{"role": "assistant", "content": "An answer to nothing."}]},
        {"messages": [{"role": "user", "content": "long " * 2000}]},
        {"messages": [{"role": "user", "content": "2 + 2?"}]},
    ]
    (work / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bad))
    done = run_vtool(work, "predict", "digits", "bad.jsonl")
    assert done.status == 1
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["answer"] is None for line in lines] == [True, True, True, False]
    assert "there is no image none.png" in lines[0]["error"]
    assert "the model takes 2048" in lines[2]["error"]
    for rule in ("missing-image VT603", "malformed-messages", "beyond-context VT835"):
        assert f"error[{rule}" in done.stderr


def test_options_of_one_question_do_not_go_with_rows(work: Path) -> None:
    output = vtool(work, "predict", "digits", "rows.jsonl", "--question", "Hi?", status=2)
    assert "--question" in output
    output = vtool(work, "predict", "digits", "--out", "answers.jsonl", status=2)
    assert "none is given" in output


def test_an_answer_that_is_cut_off_is_reported(work: Path) -> None:
    image = shown(work)[0]["image"]
    done = run_vtool(work, "predict", "digits", f"runs/digits/{image}", "--max-new-tokens", "1")
    assert done.status == 0
    assert "the answer was stopped at 1 tokens" in done.stderr
