"""Answers are found by the marks of a chat template, of whatever form its contents are."""

import json
from pathlib import Path

import pytest

from tests.watch.runs.loop import TEMPLATE, tokenizer
from vtool.watch.turns import Turns, find_turns, load_tokenizer

PARTS = TEMPLATE.replace(
    "{{ m.content }}", "{% for part in m.content %}{{ part['text'] }}{% endfor %}"
)
FILTERED = TEMPLATE.replace(
    "{{ m.content }}",
    "{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}"
    "{% endfor %}",
)


def folder_with(tmp_path: Path, template: str) -> Path:
    tokenizer(tmp_path)
    config = {"chat_template": template, "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize("template", [TEMPLATE, PARTS, FILTERED], ids=["text", "parts", "filtered"])
def test_marks_are_found_in_templates_of_text_and_of_parts(tmp_path: Path, template: str) -> None:
    turns = find_turns(folder_with(tmp_path, template))
    assert isinstance(turns, Turns), turns
    ids = turns.tokenizer.encode(
        "<|im_start|>user\nw20 w21<|im_end|>\n<|im_start|>assistant\nw30 w31<|im_end|>\n"
    ).ids
    (answer,) = turns.answers(ids)
    assert turns.text(ids[answer.begin : answer.end]).replace(" ", "") == "w30w31<|im_end|>"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('no') }}", "cannot be rendered: no"),
        ("nothing of the messages", "does not keep turns in order"),
        ("{% for m in messages %}{{ m.role }}\n{{ m.content }}\n{% endfor %}", "by plain text"),
    ],
)
def test_a_template_without_marks_says_why(tmp_path: Path, template: str, why: str) -> None:
    assert why in str(find_turns(folder_with(tmp_path, template)))


@pytest.mark.parametrize("normalizer", [{"type": "Precompiled", "precompiled_charsmap": "AAAA"}, 3])
def test_a_tokenizer_that_its_library_gives_up_at_is_none(
    tmp_path: Path, normalizer: object
) -> None:
    folder = folder_with(tmp_path, TEMPLATE)
    assert load_tokenizer(folder) is not None
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "normalizer": normalizer}))
    assert load_tokenizer(folder) is None
