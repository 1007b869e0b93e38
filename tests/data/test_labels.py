"""The labels and the assistant's own words are one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rows import chat, mixed_rows, write_rows
from tests.runs import encoded, messages, request
from vtool.data.chat import IGNORED
from vtool.data.encode import encode_row
from vtool.data.labels import check_features, check_labels, same_text
from vtool.data.loader import EncodedRows
from vtool.diagnostics import Diagnostic

# How Qwen3 writes an assistant's turn: what is before </think> is the reasoning, stripped, and the
# rest the answer.
_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' and"
    " '</think>' in m['content'] %}<think>\n{{"
    " m['content'].split('</think>')[0].split('<think>')[-1].strip('\n') }}\n</think>\n\n{{"
    " m['content'].split('</think>')[-1].lstrip('\n') }}{% else %}{{ m['content'] }}{% endif"
    " %}<|im_end|>\n{% endfor %}"
)
THINKING = _THINKING + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
OPENED = _THINKING + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
_PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ CONTENT }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THOUGHT = "<think>whiskers\n</think>\na cat"


def rows_of(folder: Path, rows: list[Any], *overrides: str) -> EncodedRows:
    return encoded(request("rows", messages(write_rows(folder / "rows.jsonl", rows)), *overrides))[
        0
    ]


def checked(folder: Path, answer: Any, template: str) -> Diagnostic | None:
    rows = rows_of(folder, [chat("Hi", "Hello"), chat("Hi", answer)])
    rows.processor.tokenizer.chat_template = template
    return check_labels(
        encode_row(rows.rows.row(1), 1, rows.processor, rows.settings),
        rows.processor,
        rows.rows.row(1),
    )


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        ("a cat", "m['content'][:-1]"),
        ("a cat", "m['content'] | upper"),
        (THOUGHT, "m['content'].split('</think>')[-1]"),
        (
            [{"type": "text", "text": "a cat"}, {"type": "text", "text": "and a dog"}],
            "m['content'][0]['text'] or m['content']",
        ),
        ("assistant", "'a cat'"),
    ],
)
def test_an_answer_that_the_template_does_not_write_is_found(
    tmp_path: Path, answer: Any, written: str
) -> None:
    finding = checked(tmp_path, answer, _PLAIN.replace("CONTENT", written))
    assert finding is not None
    assert finding.rule == "labels-differ-from-answers"
    assert "turn 2 says" in finding.message
    assert finding.origin is not None
    assert finding.origin.line == 2
    said = answer if isinstance(answer, str) else "a catand a dog"
    assert finding.expected == repr(said)
    assert finding.seen is not None
    assert finding.seen.endswith("<|im_end|>'")


@pytest.mark.parametrize(
    ("decoded", "wanted", "truncated", "same"),
    [
        ("café", "cafe\u0301", False, True),
        ("cafe", "cafe\u0301", True, True),
        ("caf", "café", True, True),
        ("漢\ufffd\ufffd", "漢字", True, True),
        ("漢\ufffd", "漢字", False, False),
        ("cafe", "cafe\u0301", False, False),
        ("cat", "car", True, False),
    ],
)
def test_texts_are_one_whatever_form_their_letters_have_and_wherever_they_are_cut(
    decoded: str, wanted: str, truncated: bool, same: bool
) -> None:
    assert same_text(decoded, wanted, truncated=truncated) is same


@pytest.mark.parametrize(
    ("answer", "template"),
    [
        (" a cat\n  and a dog \n", _PLAIN.replace("CONTENT", "m['content'] | trim")),
        ("cafe\u0301", _PLAIN.replace("CONTENT", "m['content']")),
        ("a cat", _PLAIN.replace("CONTENT", "'<think>\n\n</think>\n\n' ~ m['content']")),
        (THOUGHT, THINKING),
        (THOUGHT, OPENED),
        ("<think>\n\n</think>\n\na cat", OPENED),
    ],
)
def test_space_composed_letters_and_thoughts_are_no_difference(
    tmp_path: Path, answer: str, template: str
) -> None:
    assert checked(tmp_path, answer, template) is None


def test_labels_that_are_not_the_answers_are_found(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [chat("Hi", "word word")])
    sample, row = encode_row(rows.rows.row(0), 0, rows.processor, rows.settings), rows.rows.row(0)
    assert check_labels(sample, rows.processor, row) is None
    shifted = replace(
        sample, labels=sample.labels.roll(1).where(sample.labels != IGNORED, sample.labels)
    )
    finding = check_labels(shifted, rows.processor, row)
    assert finding is not None
    assert finding.rule == "labels-differ-from-answers"


def test_a_row_with_more_or_fewer_image_tokens_than_features_is_found(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        mixed_rows(tmp_path, 5, text_only=(1,)),
        "data.image={min_pixels: 784, max_pixels: 3136}",
    )
    for place in range(5):
        sample, row = (
            encode_row(rows.rows.row(place), place, rows.processor, rows.settings),
            rows.rows.row(place),
        )
        assert check_features(sample, rows.processor, row) is None
        image = rows.processor.ids.image
        for ids in (
            sample.input_ids[sample.input_ids != image],
            torch.cat([sample.input_ids, torch.tensor([image])]),
        ):
            finding = check_features(replace(sample, input_ids=ids), rows.processor, row)
            if len(ids) < len(sample.input_ids) or len(ids) > len(sample.input_ids):
                assert finding is not None
                assert (finding.rule, finding.origin) == ("image-token-mismatch", row.origin)
