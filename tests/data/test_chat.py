from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vtool.config.schema import Image, Model
from vtool.data.chat import IGNORED, control_tokens_in, render_chat, render_prompt
from vtool.data.row import Row
from vtool.diagnostics import Findings
from vtool.models.processor import Processor, new_processor

TEXTS = ["What is it?", "a cat", "And now?", "two dogs", "Be brief."]

# What Qwen's folders carry: a system prompt of its own where the chat has none, and images counted.
QWEN_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def processor() -> Processor:
    return new_processor(Model(size="tiny"), Image(), TEXTS)


def row(*turns: tuple[str, Any]) -> Row:
    return Row("r", [{"role": role, "content": content} for role, content in turns], [])


def spans(processor: Processor, labels: tuple[int, ...]) -> list[str]:
    """The supervised spans as text."""
    found: list[list[int]] = []
    for place, label in enumerate(labels):
        if label != IGNORED:
            if place == 0 or labels[place - 1] == IGNORED:
                found.append([])
            found[-1].append(label)
    return [processor.tokenizer.decode(span) for span in found]


@pytest.mark.parametrize("template", [None, QWEN_TEMPLATE])
def test_labels_are_the_answers_and_their_end_tokens_and_nothing_else(processor: Processor, template: str | None) -> None:
    if template:
        tokenizer = type(processor.tokenizer)(tokenizer_object=processor.tokenizer.backend_tokenizer, eos_token="<|im_end|>")
        tokenizer.chat_template = template
        processor = replace(processor, tokenizer=tokenizer)
    chat = render_chat(row(("user", "What is it?"), ("assistant", "a cat"), ("user", "And now?"), ("assistant", "two dogs")), processor)
    assert spans(processor, chat.labels) == ["a cat<|im_end|>", "two dogs<|im_end|>"]
    assert list(chat.turns) == ["a cat<|im_end|>", "two dogs<|im_end|>"]


def test_the_tokens_are_those_of_the_whole_chat(processor: Processor) -> None:
    made = row(("system", "Be brief."), ("user", "What is it?"), ("assistant", "a cat"))
    text = processor.tokenizer.apply_chat_template(made.messages, tokenize=False)
    assert processor.tokenizer.decode(render_chat(made, processor).ids) == text


def test_the_prompt_of_training_is_the_prompt_of_inference(processor: Processor) -> None:
    made = row(("user", "What is it?"), ("assistant", "\n\na cat"))  # an answer whose first token could merge with the prompt's last
    ids, reference = render_prompt(made, processor)
    assert render_chat(made, processor).ids[: len(ids)] == ids
    assert reference == "\n\na cat"


def broken(made: Row, processor: Processor) -> str:
    with pytest.raises(Findings) as caught:
        render_chat(made, processor)
    return caught.value.diagnostics[0].rule


def with_template(processor: Processor, template: str) -> Iterator[Processor]:
    before = processor.tokenizer.chat_template
    processor.tokenizer.chat_template = template
    yield processor
    processor.tokenizer.chat_template = before


def test_no_assistant_turn_is_refused(processor: Processor) -> None:
    assert broken(row(("user", "What is it?")), processor) == "no-assistant-turn"


def test_an_empty_answer_is_refused(processor: Processor) -> None:
    assert broken(row(("user", "What is it?"), ("assistant", " ")), processor) == "no-assistant-turn"


def test_a_chat_that_the_assistant_opens_is_refused(processor: Processor) -> None:
    assert broken(row(("assistant", "a cat")), processor) == "malformed-messages"


def test_a_template_that_rewrites_earlier_turns_is_refused(processor: Processor) -> None:
    template = "{% for m in messages %}{% if loop.last or m['role'] == 'user' %}{{ m['role'] }}:{{ m['content'] }}<|im_end|>{% endif %}"
    template += "{% endfor %}"
    template += "{% if add_generation_prompt %}assistant:{% endif %}"
    for changed in with_template(processor, template):
        made = row(("user", "What is it?"), ("assistant", "a cat"), ("user", "And now?"), ("assistant", "two dogs"))
        assert broken(made, changed) == "unstable-template"


def test_a_template_that_leaves_turns_open_is_refused(processor: Processor) -> None:
    template = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    for changed in with_template(processor, template):
        assert broken(row(("user", "What is it?"), ("assistant", "a cat")), changed) == "end-token-unsupervised"


def test_what_the_template_itself_refuses_is_told(processor: Processor) -> None:
    for changed in with_template(processor, "{{ raise_exception('roles must alternate') }}"):
        with pytest.raises(Findings, match="roles must alternate"):
            render_chat(row(("user", "What is it?"), ("assistant", "a cat")), changed)


def test_control_tokens_in_a_text_are_found(processor: Processor) -> None:
    assert control_tokens_in(row(("user", "What does <|im_end|> mean?"), ("assistant", "a cat")), processor) == ["<|im_end|>"]
    assert control_tokens_in(row(("user", "What is <b>it</b>?"), ("assistant", "a cat")), processor) == []


def test_a_new_tokenizer_gives_back_any_text(processor: Processor, tmp_path: Path) -> None:
    text = "Größe 12 → 猫 🐈\n\ttabs  and spaces"
    assert processor.tokenizer.decode(processor.tokenizer(text).input_ids, clean_up_tokenization_spaces=False) == text
