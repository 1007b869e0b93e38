import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import open_rows, said
from tests.rows import picture
from vtool.data.row import Row
from vtool.diagnostics import Diagnostic, Findings

SHAREGPT = {"file_name": "x.json", "formatting": "sharegpt"}


def read(folder: Path, entry: dict[str, Any], *rows: Any, **settings: Any) -> list[Row]:
    (folder / "dataset_info.json").write_text(json.dumps({"mine": entry, "other": {}}))
    (folder / "x.json").write_text(json.dumps(rows))
    reader = open_rows("llama_factory", folder, dataset="mine", **settings)
    return [reader.row(index) for index in range(len(reader))]


def refused(folder: Path, entry: dict[str, Any], *rows: Any, **settings: Any) -> Diagnostic:
    with pytest.raises(Findings) as caught:
        read(folder, entry, *rows, **settings)
    (finding,) = caught.value.diagnostics
    return finding


def test_columns_and_tags_are_read_as_the_entry_names_them(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    entry = SHAREGPT | {
        "columns": {"messages": "talk", "images": "photos", "system": "rules", "tools": "tools"},
        "tags": {
            "role_tag": "who",
            "content_tag": "what",
            "user_tag": "me",
            "assistant_tag": "it",
            "observation_tag": "saw",
        },
    }
    talk = [("me", "<image>?"), ("it", "Wait."), ("saw", "4"), ("it", "Four.")]
    (row,) = read(
        tmp_path,
        entry,
        {
            "talk": [{"who": who, "what": what} for who, what in talk],
            "photos": ["a.png"],
            "rules": "Be brief.",
            "tools": '[{"name": "count"}]',
            "id": 1,
        },
    )
    assert [message["role"] for message in row.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert row.images == [str(tmp_path / "a.png")]
    assert row.tools == [{"name": "count"}]


def test_without_names_the_columns_are_its_own(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    (row,) = read(tmp_path, SHAREGPT, {"conversations": turns})
    assert said(row) == [("user", "a"), ("assistant", "b")]
    columns = {"prompt": "q", "response": "a", "query": None, "history": "before"}
    entry = {"file_name": "x.json", "columns": columns}
    (row,) = read(tmp_path, entry, {"q": "Sum", "input": "1 1", "a": "2", "before": [["h", "i"]]})
    assert said(row)[2:] == [("user", "Sum\n1 1"), ("assistant", "2")]


def test_a_column_that_the_entry_does_not_name_is_refused_and_not_left_out(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    finding = refused(tmp_path, SHAREGPT, {"conversations": turns, "images": ["a.png"]})
    assert (finding.rule, finding.message) == (
        "malformed-messages",
        'x.json row 1: the row has "images", which no column of mine is',
    )
    assert finding.help == 'name it in dataset_info.json: "columns": {"images": "images"}'


@pytest.mark.parametrize(
    ("entry", "rule", "words"),
    [
        ({"file_name": "x.json", "ranking": True}, "not-for-training", "preferred and rejected"),
        ({"file_name": "x.json", "columns": {"kto_tag": "l"}}, "not-for-training", "preferred"),
        ({"hf_hub_url": "a/b"}, "broken-row", "fetched"),
        ({"script_url": "a.py"}, "broken-row", "script"),
        ({"file_name": "x.json", "num_samples": 10}, "broken-row", "num_samples"),
        ({"file_name": "x.json", "formatting": "openai"}, "broken-row", "'openai'"),
        ({"file_name": "x.json", "columns": {"chosen": "c"}}, "broken-row", "chosen"),
        ({"file_name": "x.json", "tags": {"user": "c"}}, "broken-row", "user"),
        ({"file_name": "gone.json"}, "path-not-found", "gone.json"),
    ],
)
def test_an_entry_that_cannot_be_read_without_loss_is_refused(
    tmp_path: Path, entry: dict[str, Any], rule: str, words: str
) -> None:
    finding = refused(tmp_path, entry)
    assert finding.rule == rule
    assert words in finding.message


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([("human", "a"), ("function_call", "{}")], "call of a tool as text"),
        ([("human", "a"), ("bing", "b")], "must be one of human, gpt, observation, system"),
        ([("human", "a"), ("gpt", "b"), ("system", "c")], "a late one"),
    ],
)
def test_a_turn_that_cannot_be_mapped_is_named(
    tmp_path: Path, turns: list[tuple[str, str]], words: str
) -> None:
    row = {"conversations": [{"from": who, "value": what} for who, what in turns]}
    finding = refused(tmp_path, SHAREGPT, row)
    assert finding.rule == "malformed-messages"
    assert words in finding.message


def test_a_data_set_that_is_not_there_is_answered_with_what_is(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": SHAREGPT}))
    with pytest.raises(Findings, match=r"unknown-choice.*no data set mime") as caught:
        open_rows("llama_factory", tmp_path / "dataset_info.json", dataset="mime")
    assert caught.value.diagnostics[0].help == "did you mean `mine`?"


def test_a_turn_that_another_project_masks_is_not_learnt(tmp_path: Path) -> None:
    turns = [("human", {}), ("gpt", {"train": False}), ("human", {}), ("gpt", {"train": True})]
    talk = [{"from": who, "value": who} | more for who, more in turns]
    (row,) = read(tmp_path, SHAREGPT, {"conversations": talk})
    assert list(row.supervised()) == [3]
    assert "train" not in row.messages[3]


@pytest.mark.parametrize("formatting", ["sharegpt", "alpaca"])
def test_an_image_that_is_not_in_the_folder_is_looked_for_where_we_run(
    formatting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLaMA-Factory takes `data/images/0.png` of a row where it is run above `data`."""
    monkeypatch.chdir(tmp_path)
    folder = Path("data")
    (folder / "images").mkdir(parents=True)
    for name in ("data/images/0.png", "data/1.png", "1.png"):
        picture(tmp_path / name)
    images = ["data/images/0.png", "1.png"]
    rows: dict[str, dict[str, Any]] = {
        "sharegpt": {
            "conversations": [
                {"from": "human", "value": "<image><image>?"},
                {"from": "gpt", "value": "It."},
            ]
        },
        "alpaca": {"instruction": "<image><image>?", "output": "It."},
    }
    entry = {"file_name": "x.json", "formatting": formatting, "columns": {"images": "images"}}
    (row,) = read(folder, entry, rows[formatting] | {"images": images})
    assert row.images == [str(tmp_path / images[0]), "data/1.png"]
    with pytest.raises(Findings, match="missing-image"):
        read(folder, entry, rows[formatting] | {"images": ["data/images/9.png", "1.png"]})
