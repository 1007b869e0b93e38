"""`vtool verify` of rows with other projects' keys, as a user runs it."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.rows import chat, write_rows
from vtool.cli.app import app


def verified(folder: Path, rows: list[Any], *arguments: str) -> dict[str, Any]:
    file = write_rows(folder / "rows.jsonl", rows)
    result = CliRunner().invoke(app, ["verify", str(file), *arguments, "--format", "json"])
    (found,) = json.loads(result.stdout)["results"]
    return {**found, "exit": result.exit_code}


def test_a_turn_that_another_project_masks_is_not_supervised(tmp_path: Path) -> None:
    row = {"messages": [*chat("Plan.", "Fly.")["messages"], *chat("No.", "Walk.")["messages"]]}
    row["messages"][1]["trainable"] = False
    found = verified(tmp_path, [row])
    assert (found["exit"], found["findings"]) == (0, [])
    (shown,) = found["details"]["rows"].values()
    assert [span["text"] for span in shown["spans"]] == ["Walk.<|im_end|>"]


def test_keys_that_nothing_reads_are_one_note(tmp_path: Path) -> None:
    rows = [chat("a", "b") | {"image_path": "a.png", "id": number} for number in range(3)]
    rows[0]["messages"][1]["mood"] = "glad"
    found = verified(tmp_path, rows)
    notes = [one for one in found["findings"] if one["rule"] == "unread-key"]
    assert [one["severity"] for one in notes] == ["note"]
    assert notes[0]["message"] == (
        'data.train: of 3 rows, keys that nothing reads: "image_path" in 3 (rows.jsonl:1,'
        ' rows.jsonl:2, rows.jsonl:3); "mood" of a message in 1 (rows.jsonl:1)'
    )
    assert found["exit"] == 0


def test_nan_and_an_empty_list_of_calls_are_what_they_are(tmp_path: Path) -> None:
    rows = [chat("a", "b"), chat("c", "d") | {"images": float("nan")}]
    rows[0]["messages"][1]["tool_calls"] = []
    found = verified(tmp_path, rows)
    assert found["exit"] == 1
    first = found["findings"][0]
    assert first["message"].endswith(
        '"images" is NaN, which pandas writes for a missing value: write null, or leave the key out'
    )
    assert first["origin"]["line"] == 2


def test_a_row_of_another_task_with_an_answer_is_a_note_in_every_layout(tmp_path: Path) -> None:
    rows = [{"query": f"a{n}", "response": f"b{n}", "rejected_response": "c"} for n in range(3)]
    found = verified(tmp_path, rows)
    (note,) = found["findings"]
    assert (found["exit"], note["rule"], note["severity"]) == (0, "unread-key", "note")
    assert '"rejected_response" (a pair of a preferred and a rejected answer' in note["message"]
