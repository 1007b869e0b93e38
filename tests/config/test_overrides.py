"""KEY=VALUE that cannot be read is answered with what to type."""

import json
from typing import Any

import pytest

from vtool.config.load import examine
from vtool.config.overrides import parse_overrides
from vtool.diagnostics import Findings


@pytest.mark.parametrize(
    ("override", "message", "help"),
    [
        ("optim.lr=1e-4,", "it ends with a comma", "write optim.lr=1e-4"),
        (
            "data.train=a=b.jsonl",
            "its value has characters that need quotes",
            "quote the value, for vtool and for the shell: \"data.train='a=b.jsonl'\"",
        ),
    ],
)
def test_a_value_that_cannot_be_read_is_answered_without_the_parsers_words(
    override: str, message: str, help: str
) -> None:
    with pytest.raises(Findings) as caught:
        examine("digits", [override])
    (found,) = caught.value.diagnostics
    assert (found.rule, found.help) == ("bad-override", help)
    assert found.message == f"`{override}` cannot be read: {message}"


@pytest.mark.parametrize(
    "value",
    [
        {"enable_thinking": False},
        [{"format": "messages", "path": "my rows.jsonl"}],
        {"a b": {"c": [1, 2.5, None, True, "x, 'y' \\ z", "1", "null", "é\n", "end\\"]}},
        {"tools": [{"type": "function", "function": {"name": "f", "description": 'it\'s "x"'}}]},
    ],
)
def test_pasted_json_is_its_value(value: Any) -> None:
    (found,) = parse_overrides([f"data.x={json.dumps(value, ensure_ascii=False)}"])
    assert found.value() == value


@pytest.mark.parametrize("text", ['{"a": 1', '{"": 1}', '{"a": NaN}', "{'a': 1}"])
def test_what_is_no_json_is_still_refused(text: str) -> None:
    with pytest.raises(Findings):
        parse_overrides([f"data.x={text}"])
