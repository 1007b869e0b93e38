from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vtool.config.schema import Image, Model
from vtool.data.chat import IGNORED, all_texts, control_tokens_in, render_chat, render_prompt
from vtool.data.row import Row
from vtool.diagnostics import Findings
from vtool.models.processor import Processor, new_processor

TEXTS = ["What is it?", "a cat", "And now?", "two dogs", "Be brief."]

# What Qwen's folders carry: a system prompt of its own where the chat has none, and images counted.
QWEN_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system'"
    " %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{"
    " message['role'] }}\n{% if message['content'] is string %}{{ message['content']"
    " }}<|im_end|>\n{% else %}{% for content in message['content'] %}{% if content['type'] =="
    " 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{"
    " content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if"
    " add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
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
def test_labels_are_the_answers_and_their_end_tokens_and_nothing_else(
    processor: Processor, template: str | None
) -> None:
    if template:
        tokenizer = type(processor.tokenizer)(
            tokenizer_object=processor.tokenizer.backend_tokenizer, eos_token="<|im_end|>"
        )
        tokenizer.chat_template = template
        processor = replace(processor, tokenizer=tokenizer)
    chat = render_chat(
        row(
            ("user", "What is it?"),
            ("assistant", "a cat"),
            ("user", "And now?"),
            ("assistant", "two dogs"),
        ),
        processor,
    )
    assert spans(processor, chat.labels) == ["a cat<|im_end|>", "two dogs<|im_end|>"]
    assert [turn.text for turn in chat.turns] == ["a cat<|im_end|>", "two dogs<|im_end|>"]


def test_the_tokens_are_those_of_the_whole_chat(processor: Processor) -> None:
    made = row(("system", "Be brief."), ("user", "What is it?"), ("assistant", "a cat"))
    text = processor.tokenizer.apply_chat_template(made.messages, tokenize=False)
    assert processor.tokenizer.decode(render_chat(made, processor).ids) == text


def test_the_prompt_of_training_is_the_prompt_of_inference(processor: Processor) -> None:
    # an answer whose first token could merge with the prompt's last
    made = row(("user", "What is it?"), ("assistant", "\n\na cat"))
    ids, reference = render_prompt(made, processor)
    assert render_chat(made, processor).ids[: len(ids)] == ids
    assert reference == "\n\na cat"


def test_a_prompt_of_many_turns_has_the_ids_of_training() -> None:
    processor = new_processor(Model(size="tiny"), Image(), ["\n\n\n\n a cat"] * 9)
    made = row(
        ("user", "What is it?"),
        ("assistant", "\n\na cat"),
        ("user", "And now?"),
        ("assistant", "\n\ntwo dogs"),
    )
    chat = render_chat(made, processor)
    last = [
        place
        for place in range(1, len(chat.ids))
        if chat.labels[place] != IGNORED and chat.labels[place - 1] == IGNORED
    ][-1]
    assert render_prompt(made, processor) == (chat.ids[:last], "\n\ntwo dogs")
    text = processor.tokenizer.decode(chat.ids[:last])
    assert tuple(processor.tokenizer(text).input_ids) != chat.ids[:last], (
        "tokenized whole, an answer's first token is another one"
    )


def weighted(weights: tuple[int, int]) -> Row:
    turns = [
        ("user", "What is it?"),
        ("assistant", "a cat"),
        ("user", "And now?"),
        ("assistant", "two dogs"),
    ]
    messages = [{"role": role, "content": content} for role, content in turns]
    return Row(
        "r",
        [
            messages[0],
            messages[1] | {"weight": weights[0]},
            messages[2],
            messages[3] | {"weight": weights[1]},
        ],
        [],
    )


def test_a_turn_of_weight_0_is_read_and_not_learnt(processor: Processor) -> None:
    both, second, first = (
        render_chat(weighted(weights), processor) for weights in ((1, 1), (0, 1), (1, 0))
    )
    assert spans(processor, second.labels) == ["two dogs<|im_end|>"]
    assert spans(processor, first.labels) == ["a cat<|im_end|>"]
    assert (
        processor.tokenizer.decode(second.ids)
        == processor.tokenizer.decode(first.ids)
        == processor.tokenizer.decode(both.ids)
    )
    assert render_prompt(weighted((1, 0)), processor)[1] == "a cat"


def test_a_chat_of_which_every_turn_has_weight_0_is_refused(processor: Processor) -> None:
    assert broken(weighted((0, 0)), processor) == "no-assistant-turn"


def with_key(key: str) -> Row:
    made = row(("user", "What is it?"), ("assistant", "a cat"))
    value = (
        "whiskers"
        if key == "reasoning_content"
        else [{"type": "function", "function": {"name": "look", "arguments": {}}}]
    )
    return (
        replace(made, tools=value)
        if key == "tools"
        else replace(made, messages=[made.messages[0], {**made.messages[1], key: value}])
    )


@pytest.mark.parametrize("key", ["tools", "tool_calls", "reasoning_content", "function_calls"])
def test_what_the_template_leaves_out_is_named(processor: Processor, key: str) -> None:
    with pytest.raises(Findings, match=f"leaves out {key}") as caught:
        render_chat(with_key(key), processor)
    assert caught.value.diagnostics[0].rule == "ignored-by-template"


@pytest.mark.parametrize("key", ["tools", "tool_calls", "reasoning_content", "function_calls"])
def test_what_the_template_writes_is_no_finding(processor: Processor, key: str) -> None:
    template = (
        "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m['role'] }}:{{"
        " m['tool_calls'] }}{{ m['function_calls'] }}{{ m['reasoning_content'] }}{{ m['content']"
        " }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    for changed in with_template(processor, template):
        assert spans(changed, render_chat(with_key(key), changed).labels)[-1].endswith(
            "a cat<|im_end|>"
        )


def test_parts_that_a_template_writes_as_a_list_of_python_are_refused(processor: Processor) -> None:
    template = (
        "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}<|im_end|>{% endfor %}{% if"
        " add_generation_prompt %}assistant:{% endif %}"
    )
    for changed in with_template(processor, template):
        assert (
            broken(row(("user", [{"type": "text", "text": "Hi"}]), ("assistant", "a cat")), changed)
            == "malformed-messages"
        )


def test_a_template_that_breaks_is_a_finding_and_no_traceback(processor: Processor) -> None:
    for changed in with_template(processor, "{{ messages[0]['content'] + 1 }}"):
        assert (
            broken(row(("user", "What is it?"), ("assistant", "a cat")), changed)
            == "malformed-messages"
        )


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
    assert (
        broken(row(("user", "What is it?"), ("assistant", " ")), processor) == "no-assistant-turn"
    )


def test_a_chat_that_the_assistant_opens_is_refused(processor: Processor) -> None:
    assert broken(row(("assistant", "a cat")), processor) == "malformed-messages"


def test_a_template_that_rewrites_earlier_turns_is_refused(processor: Processor) -> None:
    template = (
        "{% for m in messages %}{% if loop.last or m['role'] == 'user' %}{{ m['role'] }}:{{"
        " m['content'] }}<|im_end|>{% endif %}"
    )
    template += "{% endfor %}"
    template += "{% if add_generation_prompt %}assistant:{% endif %}"
    for changed in with_template(processor, template):
        made = row(
            ("user", "What is it?"),
            ("assistant", "a cat"),
            ("user", "And now?"),
            ("assistant", "two dogs"),
        )
        assert broken(made, changed) == "unstable-template"


def test_a_template_that_leaves_turns_open_is_refused(processor: Processor) -> None:
    template = (
        "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}{% if"
        " add_generation_prompt %}assistant:{% endif %}"
    )
    for changed in with_template(processor, template):
        assert (
            broken(row(("user", "What is it?"), ("assistant", "a cat")), changed)
            == "end-token-unsupervised"
        )


def test_what_the_template_itself_refuses_is_reported(processor: Processor) -> None:
    for changed in with_template(processor, "{{ raise_exception('roles must alternate') }}"):
        with pytest.raises(Findings, match="roles must alternate"):
            render_chat(row(("user", "What is it?"), ("assistant", "a cat")), changed)


def control_tokens(made: Row, processor: Processor) -> list[str]:
    return control_tokens_in(all_texts(made), processor.tokenizer.all_special_tokens)


def test_control_tokens_in_a_text_are_found(processor: Processor) -> None:
    odd = row(("user", "What does <|im_end|> mean?"), ("assistant", "a cat"))
    assert control_tokens(odd, processor) == ["<|im_end|>"]
    plain = row(("user", "What is <b>it</b>?"), ("assistant", "a cat"))
    assert control_tokens(plain, processor) == []
    box = ["<|box_start|>(1,2),(3,4)<|box_end|>"]
    assert control_tokens_in(box, ["<|box_start|>", "<|box_end|>", "<|im_end|>"]) == []


def test_control_tokens_in_reasoning_and_tools_are_found(processor: Processor) -> None:
    made = row(("user", "What is it?"), ("assistant", "a cat"))
    thought = replace(
        made, messages=[made.messages[0], {**made.messages[1], "reasoning_content": "so<|im_end|>"}]
    )
    assert control_tokens(thought, processor) == ["<|im_end|>"]
    given = replace(made, tools=[{"name": "<|image_pad|>"}])
    assert control_tokens(given, processor) == ["<|image_pad|>"]


def test_a_new_tokenizer_gives_back_any_text(processor: Processor, tmp_path: Path) -> None:
    text = "Größe 12 → 猫 🐈\n\ttabs  and spaces"
    assert (
        processor.tokenizer.decode(
            processor.tokenizer(text).input_ids, clean_up_tokenization_spaces=False
        )
        == text
    )
