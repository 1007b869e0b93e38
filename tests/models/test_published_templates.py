"""Supervised is what inference would write after its prompt, by any published template."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.models.templates import (
    STOPS,
    TEMPLATES,
    OneRow,
    byte_tokenizer,
    keeping_thoughts,
    processor_of,
    without_prompt,
)
from vtool.config.load import load_run
from vtool.data.chat import IGNORED, render_chat
from vtool.data.row import Row
from vtool.data.sources import Rows
from vtool.data.text_traits import TEXT_TRAITS, traits_of
from vtool.data.turns import EachAnswer, LastAnswers, prepare_rows
from vtool.diagnostics import Findings
from vtool.models.chat_template import (
    differing_templates,
    find_form,
    learnt_role,
)
from vtool.models.chosen_template import choose_template
from vtool.models.processor import Processor

ASKED, ASKED_AGAIN = (
    {"role": "user", "content": "What color?"},
    {"role": "user", "content": "Sure?"},
)
OFF = {"enable_thinking": False}
THOUGHT = "It looks red."


def said(text: str, thought: str = "", *, inside: bool = False) -> dict[str, Any]:
    if inside:
        text, thought = f"<think>\n{thought}\n</think>\n\n{text}", ""
    return {
        "role": "assistant",
        "content": text,
        **({"reasoning_content": thought} if thought else {}),
    }


def made(name: str, arguments: Mapping[str, Any] | None = None) -> Processor:
    return processor_of(TEMPLATES[name], byte_tokenizer(), arguments, STOPS.get(name, ()))


def samples(processor: Processor, messages: Sequence[Mapping[str, Any]]) -> list[Row]:
    reader = EachAnswer.of(OneRow(messages), processor.form)
    return [reader.row(index) for index in range(len(reader))]


def supervised(
    processor: Processor, messages: Sequence[Mapping[str, Any]], *, each: bool = True
) -> list[str]:
    """The learnt texts of a row's samples, decoded from their labels."""
    rows = samples(processor, messages) if each else [Row("r", messages, [])]
    found = []
    for row in rows:
        chat = render_chat(row, processor)
        labels = [label if label != IGNORED else None for label in chat.labels]
        begins = [0, *(at + 1 for at, two in enumerate(pairwise(labels)) if None in two), None]
        runs = [labels[begin:end] for begin, end in pairwise(begins)]
        found += [processor.tokenizer.decode(run) for run in runs if run and run[0] is not None]
    return found


PLAIN = [ASKED, said("red")]
TWO = [*PLAIN, ASKED_AGAIN, said("yes")]


@pytest.mark.parametrize(
    ("name", "arguments", "messages", "expected"),
    [
        ("qwen2_5", None, TWO, ["red<|im_end|>", "yes<|im_end|>"]),
        ("qwen3_5", OFF, TWO, ["red<|im_end|>", "yes<|im_end|>"]),
        ("qwen3_8", OFF, TWO, ["red<|im_end|>", "yes<|im_end|>"]),
        ("glm", OFF, TWO, ["\nred<|user|>", "\nyes<|user|>"]),
        ("gemma", None, TWO, ["red<end_of_turn>", "yes<end_of_turn>"]),
        ("smolvlm", None, TWO, [" red<end_of_utterance>", " yes<end_of_utterance>"]),
        *(
            (
                name,
                None,
                [
                    ASKED,
                    said("red", THOUGHT, inside=inside),
                    ASKED_AGAIN,
                    said("yes", "I am.", inside=inside),
                ],
                ends,
            )
            for inside in (False, True)
            for name, ends in (
                (
                    "qwen3_5",
                    [f"{THOUGHT}\n</think>\n\nred<|im_end|>", "I am.\n</think>\n\nyes<|im_end|>"],
                ),
                (
                    "qwen3_8",
                    [f"{THOUGHT}\n</think>\n\nred<|im_end|>", "I am.\n</think>\n\nyes<|im_end|>"],
                ),
                (
                    "glm",
                    [
                        f"\n<think>{THOUGHT}</think>\nred<|user|>",
                        "\n<think>I am.</think>\nyes<|user|>",
                    ],
                ),
            )
        ),
    ],
)
def test_what_inference_would_write_is_supervised(
    name: str, arguments: Mapping[str, Any] | None, messages: Any, expected: list[str]
) -> None:
    assert supervised(made(name, arguments), messages) == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_before_an_answer_is_the_prompt_of_inference(name: str) -> None:
    """Against the template itself, asked for the prompt of each answer by transformers."""
    processor = made(name, OFF if name in ("qwen3_5", "qwen3_8", "glm") else None)
    for row in samples(processor, TWO):
        chat = render_chat(row, processor)
        begin = (
            next(
                at
                for at, label in reversed([*enumerate(chat.labels)])
                if label == IGNORED and at + 1 < len(chat.labels) and chat.labels[at + 1] != IGNORED
            )
            + 1
        )
        asked = [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if name == "smolvlm"
            else message
            for message in row.messages[:-1]
        ]
        prompt = processor.tokenizer.apply_chat_template(
            asked, tokenize=False, add_generation_prompt=True
        )
        ids = processor.tokenizer(prompt, add_special_tokens=False).input_ids
        assert list(chat.ids[:begin]) == ids


@pytest.mark.parametrize(
    ("name", "learnt"), [("qwen3_5", 1), ("qwen3_8", 1), ("glm", 1), ("qwen2_5", 0), ("gemma", 0)]
)
def test_an_empty_thought_that_is_learnt_is_a_warning(name: str, learnt: int) -> None:
    """more-than-answer-supervised: with thinking on, the prompt does not close the thought."""
    place = [one.rule for one in TEXT_TRAITS].index("more-than-answer-supervised")

    def found(processor: Processor, messages: Any) -> int:
        row = Row("r", messages, [])
        return traits_of(row, render_chat(row, processor).turns) >> place & 1

    assert found(made(name), PLAIN) == learnt
    if learnt:
        assert found(made(name, OFF), PLAIN) == 0
        assert found(made(name), [ASKED, said("red", THOUGHT)]) == 0


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_8", "glm"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_thought_behind_a_prompt_without_one_is_refused(name: str, inside: bool) -> None:
    messages = [ASKED, said("red", THOUGHT, inside=inside)]
    with pytest.raises(Findings) as caught:
        render_chat(Row("r", messages, []), made(name, OFF))
    (finding,) = caught.value.diagnostics
    assert finding.rule == "prompt-differs"
    assert finding.help
    assert "enable_thinking=false" in finding.help


def test_rows_are_cut_only_where_the_template_writes_earlier_turns_in_another_way() -> None:
    thoughts = [ASKED, said("red", THOUGHT), ASKED_AGAIN, said("yes")]
    counts = {
        name: [len(samples(made(name), rows)) for rows in (PLAIN, TWO, thoughts)]
        for name in TEMPLATES
    }
    assert counts == {
        "qwen2_5": [1, 1, 1],
        "qwen3_5": [1, 2, 2],
        "qwen3_8": [1, 1, 1],
        "glm": [1, 1, 2],
        "gemma": [1, 1, 1],
        "smolvlm": [1, 1, 1],
    }


def test_the_answers_that_are_learnt_are_those_that_the_setting_says(tmp_path: Path) -> None:
    """data.turns: against the answers of a row of three, the second of weight 0."""
    file = tmp_path / "rows.jsonl"
    file.write_text(
        '{"id": "x", "messages": [{"role": "user", "content": "a?"},'
        ' {"role": "assistant", "content": "one"}, {"role": "user", "content": "b?"},'
        ' {"role": "assistant", "content": "two", "weight": 0}, {"role": "user", "content": "c?"},'
        ' {"role": "assistant", "content": "three"}, {"role": "user", "content": "d?"}]}\n'
    )
    expected = {
        "all": ["one<|im_end|>", "three<|im_end|>"],
        "last": ["three<|im_end|>"],
        "each": ["one<|im_end|>", "three<|im_end|>"],
    }
    for turns, texts in expected.items():
        data = load_run(
            "digits",
            [f"data.train=[{{format: messages, path: {file}}}]", f"data.turns={turns}"],
        ).run.data
        rows, processor = Rows(data.train), made("qwen2_5")
        prepare_rows(rows, processor, data)
        assert len(rows) == (2 if turns == "each" else 1)
        found, ids, lengths = [], [], []
        for index in range(len(rows)):
            row = rows.row(index)
            found += supervised(processor, row.messages, each=False)
            ids.append((row.id, row.given_id))
            lengths.append(len(row.messages))
        assert found == texts
        if turns == "each":
            assert ids == [
                ("rows.jsonl:1 answer 1", "x answer 1"),
                ("rows.jsonl:1 answer 2", "x answer 2"),
            ]
        assert lengths == {"all": [7], "last": [6], "each": [2, 6]}[turns]


def test_pictures_behind_the_answer_are_left_out() -> None:
    image = [{"type": "image"}, {"type": "text", "text": "?"}]
    messages = [
        {"role": "user", "content": image},
        said("a"),
        {"role": "user", "content": [*image, *image]},
        said("b"),
    ]

    class WithPictures(OneRow):
        def row(self, index: int) -> Row:
            return Row("r", messages, ["1.png", "2.png", "3.png"])

    reader = EachAnswer.of(WithPictures(messages), None)
    assert [list(reader.row(index).images) for index in range(2)] == [
        ["1.png"],
        ["1.png", "2.png", "3.png"],
    ]
    assert list(LastAnswers(WithPictures(messages)).row(0).images) == ["1.png", "2.png", "3.png"]


@pytest.mark.parametrize("name", ["gemma", "glm"])
def test_an_end_at_which_inference_does_not_stop_is_named(name: str) -> None:
    processor = processor_of(TEMPLATES[name], byte_tokenizer(), None, ("<eos>",))
    closing = {"gemma": "<end_of_turn>", "glm": "<|user|>"}[name]
    with pytest.raises(Findings) as caught:
        render_chat(Row("r", PLAIN, []), processor)
    (finding,) = caught.value.diagnostics
    assert finding.rule == "end-token-unsupervised"
    token = processor.tokenizer.convert_tokens_to_ids(closing)
    assert f"closes turn 2 with {closing}" in finding.message
    assert f"add {token} to eos_token_id in generation_config.json" in finding.message


def test_a_thought_that_is_never_closed_is_refused() -> None:
    for name in ("qwen3_5", "glm"):
        with pytest.raises(Findings, match="never closed"):
            render_chat(Row("r", [ASKED, said("<think>It looks red. red")], []), made(name))
    open_text = [ASKED, said("<think> is a tag")]
    assert supervised(made("qwen2_5"), open_text) == ["<think> is a tag<|im_end|>"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("<think>\nIt looks red, so the", True),
        ("<think>It looks red. red", True),
        (f"{THOUGHT}\n</think>\n\nred", True),
        (f"<think>\n{THOUGHT}\n</think>\n\nred", False),
        ("the tag <think> opens a thought, and </think> closes it", False),
        ("close it with </think>", False),
    ],
)
def test_half_a_thought_is_told_where_the_template_has_none(answer: str, told: bool) -> None:
    place = [one.rule for one in TEXT_TRAITS].index("half-a-thought")
    row = Row("r", [ASKED, said(answer)], [])
    for name in ("qwen2_5", "gemma"):
        assert traits_of(row, render_chat(row, made(name)).turns) >> place & 1 == told
    thought = Row("r", [ASKED, said(f"{THOUGHT}\n</think>\n\nred")], [])
    for name in ("qwen3_5", "glm"):  # the prompt opens it, or the template does
        assert not traits_of(thought, render_chat(thought, made(name)).turns) >> place & 1


def test_an_answer_that_turns_follow_is_cut_where_they_change_how_it_is_written() -> None:
    """The one learnt answer of a row may not be its last message."""
    for behind in ([ASKED_AGAIN], [ASKED_AGAIN, {**said("later"), "weight": 0}]):
        chat = [ASKED, said("red", THOUGHT), *behind]
        assert supervised(made("qwen3_5"), chat) == [f"{THOUGHT}\n</think>\n\nred<|im_end|>"]
        assert supervised(made("qwen3_5", OFF), [*PLAIN, *behind]) == ["red<|im_end|>"]
        (row,) = samples(made("qwen3_5"), chat)
        assert len(row.messages) == 2
        (row,) = samples(made("qwen2_5"), [ASKED, said("red"), *behind])
        assert len(row.messages) == 2 + len(behind)


def test_a_call_of_a_tool_ends_with_the_token_of_its_answer() -> None:
    """GLM's turns end with the next role's token, be the row cut behind them or not."""
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    called = {**said("", THOUGHT), "tool_calls": [call]}
    chat = [ASKED, called, {"role": "tool", "content": "3"}, said("it is 3")]
    text = TEMPLATES["glm"].replace(
        "{{ said }}{% endif %}{% endfor %}",
        "{{ said }}{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{% endfor %}"
        "{% endif %}{% endfor %}",
    )
    text = text.replace(
        "{% else %}<|assistant|>",
        "{% elif m.role == 'tool' %}<|observation|>{{ said }}{% else %}<|assistant|>",
    )
    processor = processor_of(text, byte_tokenizer(), None, STOPS["glm"])
    assert processor.form.closing_call == "<|observation|>"
    expected = f"\n<think>{THOUGHT}</think>\n<call>f<|observation|>"
    assert supervised(processor, chat)[0] == expected
    assert supervised(processor, chat)[1].endswith("it is 3<|user|>")
    assert supervised(processor, chat[:2]) == [expected]


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
        TEMPLATES["qwen2_5"].replace("{{ write(m.content) }}", "Answer: {{ write(m.content) }}"),
    ],
)
def test_a_role_or_a_word_that_is_learnt_with_the_answer_is_a_warning(template: str) -> None:
    processor = processor_of(template, byte_tokenizer(), None, ("<|im_end|>",))
    row = Row("r", PLAIN, [])
    place = [one.rule for one in TEXT_TRAITS].index("more-than-answer-supervised")
    assert traits_of(row, render_chat(row, processor).turns) >> place & 1


def test_parts_of_text_are_one_text_for_a_template_that_takes_texts() -> None:
    text = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    text += "{{ m.content if m.content is string else '' }}<|im_end|>\n{% endfor %}"
    text += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    processor = processor_of(text, byte_tokenizer())
    parts = [{"type": "text", "text": "What "}, {"type": "text", "text": "color?"}]
    row = Row("r", [{"role": "user", "content": parts}, said("red")], [])
    assert "What color?" in processor.tokenizer.decode(render_chat(row, processor).ids)
    assert supervised(processor, row.messages) == ["red<|im_end|>"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"role": "assistant", "content": "  "}, "is empty"),
        (said("<think>\nA\n</think>\n\nred") | {"reasoning_content": "B"}, "is there twice"),
        (said("use the tag </think> to close it"), "within a line"),
        (said("<think>\nA\n</think>\n\n<think>\nB\n</think>\n\nred"), "is there twice"),
        (said("<think>\n\n</think>\n\n<think>\nB\n</think>\n\nred"), "is there twice"),
        (said("red") | {"reasoning_content": "<think>\nB\n</think>"}, "in reasoning_content"),
        (said("red") | {"reasoning": "B\n</think>"}, "in reasoning"),
    ],
)
def test_an_answer_without_words_or_with_odd_thoughts_is_refused(
    answer: dict[str, Any], why: str
) -> None:
    for name in ("qwen3_5", "qwen3_8", "glm"):
        with pytest.raises(Findings, match=why):
            render_chat(Row("r", [ASKED, answer], []), made(name))
    as_prompted = said(f"{THOUGHT}\n</think>\n\nred")  # as the model writes it
    assert supervised(made("qwen3_5"), [ASKED, as_prompted]) == [
        f"{THOUGHT}\n</think>\n\nred<|im_end|>"
    ]


def test_two_templates_of_a_folder_that_differ_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES["gemma"] + "\n")
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": TEMPLATES["gemma"]}))
    assert differing_templates(tmp_path) == ()
    named = [{"name": "default", "template": TEMPLATES["glm"]}]
    for other in (TEMPLATES["glm"], named):
        config.write_text(json.dumps({"chat_template": other}))
        (finding,) = differing_templates(tmp_path)
        assert finding.rule == "templates-differ"
        assert "vLLM and vtool take chat_template.jinja's" in finding.message
    (tmp_path / "chat_template.jinja").unlink()
    own = tmp_path / "chat_template.json"
    own.write_text(json.dumps({"chat_template": TEMPLATES["gemma"]}))
    (finding,) = differing_templates(tmp_path)
    assert "vLLM and vtool take chat_template.json's" in finding.message
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATES["glm"]
    choose_template(tokenizer, tmp_path, None)
    assert tokenizer.chat_template == TEMPLATES["gemma"]
    config.write_text("[]")
    assert differing_templates(tmp_path) == ()


def test_a_template_that_refuses_everything_has_no_form() -> None:
    tokenizer = byte_tokenizer()
    for template in ("{{ raise_exception('no') }}", "{% for x in y.z %}{% endfor %}", "nothing"):
        tokenizer.chat_template = template
        assert find_form(tokenizer).closing == ""


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_without_its_role_is_prompt_supervised(name: str, tmp_path: Path) -> None:
    assert learnt_role(made(name).form, tmp_path) == ()
    text = without_prompt(TEMPLATES[name])
    (finding,) = learnt_role(
        processor_of(text, byte_tokenizer(), None, STOPS.get(name, ())).form, tmp_path
    )
    assert (finding.rule, finding.severity) == ("prompt-supervised", "error")
    role = {"glm": "<|assistant|>", "gemma": "model", "smolvlm": "Assistant:"}
    assert role.get(name, "<|im_start|>assistant") in finding.message


@pytest.mark.parametrize("name", ["qwen3_5", "glm"])
def test_an_earlier_thought_that_the_prompt_leaves_out_is_prompt_differs(name: str) -> None:
    chat = [ASKED, said("red", THOUGHT), ASKED_AGAIN, said("yes", "I am.")]
    text = keeping_thoughts(TEMPLATES[name])
    processor = processor_of(text, byte_tokenizer(), None, STOPS.get(name, ()))
    with pytest.raises(Findings) as caught:
        render_chat(Row("r", chat, []), processor)
    assert caught.value.diagnostics[0].rule == "prompt-differs"
