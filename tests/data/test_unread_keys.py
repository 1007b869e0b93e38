"""Keys of rows, messages and parts: read, known to say nothing, masks, or told."""

from pathlib import Path
from typing import Any

import pytest

from tests.data.readers import read, refused
from tests.data.test_quality import distinct, found
from tests.rows import chat, picture, write_rows
from tests.runs import messages, request
from vtool.data import audit_cache
from vtool.data.keys import is_known
from vtool.data.remarks import remarks_of
from vtool.data.row import Remark
from vtool.verification.rows import audit_rows


def marked(*marks: dict[str, Any], role: str = "assistant") -> dict[str, Any]:
    """A chat of so many questions, each with an answer that has these keys."""
    turns = [[{"role": "user", "content": "a"}, {"role": role, "content": "b"} | m] for m in marks]
    return {"messages": [message for turn in turns for message in turn]}


@pytest.mark.parametrize(
    ("key", "masked", "learnt"),
    [
        ("train", False, True),
        ("training", False, True),
        ("trainable", False, True),
        ("loss_mask", 0, 1),
        ("step_loss_mask", 0, 1),
        ("loss", False, True),
        ("loss_scale", 0.0, 1.0),
        ("loss_weight", 0, 1.0),
        ("train_on_turn", False, True),
        ("masked", True, False),
    ],
)
@pytest.mark.parametrize("format", ["messages", "llava", "trl"])
def test_a_mask_of_another_project_is_read_as_the_weight(
    tmp_path: Path, format: str, key: str, masked: Any, learnt: Any
) -> None:
    row = marked({key: masked}, {key: learnt})
    if format == "llava":
        names = {"user": "human", "assistant": "gpt"}
        row = {
            "conversations": [
                {"from": names[each.pop("role")], "value": each.pop("content"), **each}
                for each in row["messages"]
            ]
        }
    (made,) = read(format, tmp_path, row)
    assert list(made.supervised()) == [3]
    assert made.messages[1] == {"role": "assistant", "content": "b", "weight": 0}
    assert made.messages[3] == {"role": "assistant", "content": "b"}


@pytest.mark.parametrize("key", ["trainable", "loss_mask", "loss", "training"])
def test_without_a_mask_a_turn_is_learnt_where_others_are_masked(tmp_path: Path, key: str) -> None:
    (made,) = read("messages", tmp_path, marked({key: 0}, {}, {key: None}))
    assert list(made.supervised()) == [3, 5]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (marked({"trainable": 0.5}), 'turn 2 has "trainable": 0.5, which is not read'),
        (marked({"loss_mask": [0, 1]}), '"loss_mask": [0, 1], which is not read'),
        (marked({"train": "false"}), "\"train\": 'false', which is not read"),
        (marked({"train_detail": [{"train": False}]}), '"train_detail"'),
        (marked({"mask": 1}), '"mask": 1, which is not read'),
        (marked({"noLossHere": True}), '"noLossHere"'),
        (chat([{"type": "text", "text": "a", "trainable": False}], "b"), 'has "trainable"'),
        (marked({"trainable": True}, {}), "says that it is learnt, and turn 4 has none"),
        (marked({"train": True, "weight": 0}), '"train" and "weight", which differ'),
        (marked({"train": True, "masked": True}), '"train" and "masked", which differ'),
        (marked({"train": True}, role="user"), "only turns of the assistant are learnt"),
        (chat("a", "b") | {"loss_mask": [0, 1]}, 'the row has "loss_mask": [0, 1]'),
        (chat("a", "b") | {"only_last": True}, 'the row has "only_last": true'),
        (chat("a", "b") | {"train_on_inputs": True}, 'the row has "train_on_inputs"'),
        (chat("a", "b") | {"mask_history": True}, 'the row has "mask_history"'),
        (chat("a", "b") | {"weight": 0.5}, 'the row has "weight": 0.5'),
        (chat("a", "b") | {"trainable": False}, 'the row has "trainable": false'),
        (chat("a", "b") | {"labels": [-100, 7]}, 'the row has "labels"'),
    ],
)
def test_a_mask_that_is_not_a_weight_is_refused(
    tmp_path: Path, row: dict[str, Any], words: str
) -> None:
    finding = refused("messages", tmp_path, row)
    assert finding.rule == "malformed-messages"
    assert words in finding.message


@pytest.mark.parametrize(
    "keys",
    [
        {"mask_history": False, "train_on_inputs": False, "only_last": False},
        {"weight": 1.0, "train": True, "loss_mask": []},
        {"id": 7, "source": "web", "width": 3, "image_id": "x", "num_turns": 2, "_meta": {"a": 1}},
        {"__index_level_0__": 4, "prompt_id": "f", "model_name": "x", "reward_score": 0.5},
        {"prompt": "a", "text": "b"},  # what the messages say, again
        {"notes": None, "hint": "", "tags2": [], "more": {}, "late": float("nan")},
    ],
)
def test_what_says_nothing_is_not_remarked_on(tmp_path: Path, keys: dict[str, Any]) -> None:
    (made,) = read("messages", tmp_path, chat("a", "b") | keys)
    assert made.remarks == ()


def test_keys_of_rows_messages_and_parts_that_nothing_reads_are_remarked_on(
    tmp_path: Path,
) -> None:
    picture(tmp_path / "a.png")
    row = marked({"rationale": "because", "name": "x", "timestamp": 3})
    row["messages"][0]["content"] = [
        {"type": "image", "image": "a.png", "caption": "A cat."},
        {"type": "text", "text": "?", "image": None, "cache_control": {"type": "ephemeral"}},
    ]
    (made,) = read("messages", tmp_path, row | {"image_path": "b.png", "id": 3})
    assert made.remarks == (
        Remark("unread-key", '"image_path"'),
        Remark("unread-key", '"caption" of a part of type image'),
        Remark("unread-key", '"rationale" of a message', "rationale"),
    )
    ignore = ["image_path", "caption", "rationale"]
    (made,) = read("messages", tmp_path, row | {"image_path": "b.png"}, ignore=ignore)
    assert made.remarks == ()
    assert "rationale" not in made.messages[1], "the chat template is not given it either"


def test_each_key_is_told_once_with_its_rows_and_what_is_like_it(tmp_path: Path) -> None:
    rows = [
        *distinct(2),
        *(row | {"image_path": "a.png"} for row in distinct(4, 2)),
        marked({"contnt": "x"}) | {"image_path": "a.png"},
    ]
    (one,) = found(tmp_path, train=rows)
    assert (one.rule, one.severity) == ("unread-key", "note")
    assert one.message == (
        'data.train: of 7 rows, keys that nothing reads: "image_path" in 5 (train.jsonl:3,'
        ' train.jsonl:4, train.jsonl:5, …); "contnt" of a message in 1 (train.jsonl:7)'
    )
    assert one.help is not None
    assert "contnt: did you mean `content`?" in one.help
    assert one.help.endswith("ignore: [image_path, contnt]")


def test_a_key_of_a_message_that_the_template_names_is_read(tmp_path: Path) -> None:
    (made,) = read("messages", tmp_path, marked({"mood": "glad", "moods": 2}) | {"mood": 1})
    told = [one.words for one in remarks_of(made, "{{ m.content }} {{ m['mood'] }}")]
    assert told == ['"mood"', '"moods" of a message'], "the row's own is not given to it"


def test_rows_that_were_audited_before_have_the_same_remarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_cache, "WORTH", 0.0)
    monkeypatch.setattr(audit_cache, "FEWEST_ROWS", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = write_rows(tmp_path / "train.jsonl", [row | {"hint": "x"} for row in distinct(5)])
    first, again = (audit_rows(request("rows", messages(file)).run)[0] for _ in range(2))
    assert again.ledger.reused == 5
    told = [[one.message for one in each.findings] for each in (first, again)]
    assert told[0] == told[1]
    assert '"hint" in 5' in told[0][0]


@pytest.mark.parametrize(
    "row",
    [
        {"id": "1", "messages": [], "source": "x", "dataset": "y"},  # Tulu
        {"prompt": "a", "prompt_id": "f0", "messages": []},  # UltraChat, No Robots
        {"messages": [], "full_topic": "x", "source": "y", "category": "z"},  # SmolTalk
        {"uuid": "1", "license": "x", "generator": "y", "version": "v1", "messages": []},
        {"conversation_id": "1", "model": "m", "turn": 1, "language": "en", "messages": []},
        {"data_source": "x", "ability": "math", "extra_info": {"split": "train"}, "messages": []},
    ],
)
def test_rows_of_known_data_sets_are_not_remarked_on(tmp_path: Path, row: dict[str, Any]) -> None:
    (made,) = read("messages", tmp_path, row | chat("a", "b"))
    assert made.remarks == ()


def test_keys_that_may_be_shown_or_learnt_are_not_known_to_say_nothing() -> None:
    keys = ("image_path", "image_url", "img", "caption", "system_prompt", "rationale", "reasoning")
    assert [key for key in (*keys, "answer", "context", "audio", "chosen") if is_known(key)] == []


@pytest.mark.parametrize(
    ("messages_", "names"),
    [
        (
            [
                {"role": "system", "content": "s", "functions": '[{"name": "f"}]'},
                {"role": "user", "content": "a", "functions": None, "function_calls": None},
                {"role": "assistant", "content": "b", "function_calls": "f()"},
            ],
            ("functions of turn 1", 'the row\'s "tools"', "function_calls of turn 3"),
        ),
        (
            [
                {"role": "system", "content": "", "tools": [{"type": "function"}]},
                *chat("a", "b")["messages"],
            ],
            ("tools of turn 1", 'the row\'s "tools"'),
        ),
        (
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": None, "function_calls": "f()"},
                {"role": "environment", "content": "7"},
            ],
            ("'environment'", '"function_calls"', '"tool_calls"'),
        ),
    ],
)
def test_tools_and_calls_in_other_keys_are_named_with_what_has_them(
    tmp_path: Path, messages_: list[Any], names: tuple[str, ...]
) -> None:
    file = write_rows(tmp_path / "train.jsonl", [{"messages": messages_}])
    (audit,) = audit_rows(request("rows", messages(file)).run)
    first = audit.findings[0]
    assert first.rule in ("ignored-by-template", "malformed-messages")
    assert "not read" in first.message
    assert [name for name in names if name not in first.message] == []
    assert first.help is not None
    assert '"tool_calls": [{"type": "function"' in first.help


@pytest.mark.parametrize("format", ["swift", "trl", "alpaca"])
def test_a_mask_of_a_row_of_columns_is_refused_unless_it_says_what_is_so_anyway(
    tmp_path: Path, format: str
) -> None:
    row = {"instruction": "a", "output": "b"} if format == "alpaca" else chat("a", "b")
    assert read(format, tmp_path, row | {"mask_history": False, "weight": 1})[0].remarks == ()
    finding = refused(format, tmp_path, row | {"loss_mask": [0, 1]})
    assert finding.rule == "malformed-messages"
    assert 'the row has "loss_mask": [0, 1], which is not read' in finding.message


ROWS = {
    "messages": chat("a", "b"),
    "swift": {"query": "a", "response": "b"},
    "trl": {"prompt": chat("a", "b")["messages"][:1], "completion": chat("a", "b")["messages"][1:]},
    "alpaca": {"instruction": "a", "output": "b"},
    "llava": {
        "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
    },
    "cauldron": {"texts": [{"user": "a", "assistant": "b"}]},
}


@pytest.mark.parametrize("format", ROWS)
def test_a_key_that_nothing_reads_is_the_same_note_in_every_layout(
    tmp_path: Path, format: str
) -> None:
    more = {"texts": "turns"} if format == "cauldron" else {}
    keys = {"rejected_response": "c", "label": True, "rationale": "because", "id": 7}
    (made,) = read(format, tmp_path, ROWS[format] | keys, **more)
    assert [one.words.split(" (")[0] for one in made.remarks] == [
        '"rejected_response"',
        '"label"',
        '"rationale"',
    ]
    assert "pair of a preferred and a rejected answer" in made.remarks[0].words
    finding = refused(format, tmp_path, ROWS[format] | {"label": False}, **more)
    assert finding.rule == "not-for-training"


def test_a_key_that_is_like_one_of_its_layout_is_told_with_that(tmp_path: Path) -> None:
    row = {"instruction": "a", "output": "b", "histroy": [["c", "d"]]}
    file = write_rows(tmp_path / "train.jsonl", [row])
    (audit,) = audit_rows(request("rows", f"data.train=[{{format: alpaca, path: {file}}}]").run)
    (one,) = (each for each in audit.findings if each.rule == "unread-key")
    assert one.help == (
        "histroy: did you mean `history`?; where nothing of it is to be learnt: ignore: [histroy]"
    )
    finding = refused("alpaca", tmp_path, {"instruction": "a", "output": "b", "System": "c"})
    assert (finding.rule, finding.help) == ("malformed-messages", 'write "system"')


def test_an_answer_that_the_chat_ends_with_is_no_other_key(tmp_path: Path) -> None:
    row = chat("a", "b") | {"chosen": chat("a", "b")["messages"]}  # as in UltraFeedback
    assert read("messages", tmp_path, row)[0].remarks == ()
