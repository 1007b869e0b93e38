import random
import re
import time
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from jinja2 import nodes

from tests.models.templates import byte_tokenizer
from vtool import template_renderer
from vtool.families.family import load_family
from vtool.families.tokens import TokenNames
from vtool.limited_child import LimitedChild
from vtool.models.chat_template import TemplateForm, differing_marks, find_form
from vtool.models.tokenizer import _without_long_words, chat_template, train_tokenizer


def test_the_template_loops_over_nothing_but_the_content_itself() -> None:
    # This is how vLLM finds out that a template takes parts. To any other template it gives a text
    # of its own making, with a newline
    # after each image: a prompt that the model was not trained on (tests/soak/test_serving.py).
    messages, parts = jinja2.Environment().parse(chat_template(TokenNames())).find_all(nodes.For)
    assert messages.iter == nodes.Name("messages", "load")
    assert messages.target == nodes.Name("message", "store")
    assert parts.iter == nodes.Getitem(
        nodes.Name("message", "load"), nodes.Const("content"), "load"
    )


@pytest.mark.full
def test_a_text_without_spaces_takes_no_longer_than_its_length() -> None:
    """Base64 is such a text: training a tokenizer takes the square of a word's length."""
    names = load_family("qwen2_5_vl").facts.token_names
    word = "".join(random.Random(0).choices("abcdefghijklmnop", k=200_000))
    train_tokenizer(["warm"], names)

    def seconds(text: str) -> float:
        began = time.process_time()
        train_tokenizer([text], names)
        return time.process_time() - began

    # four times as long: sixteen times the time, if it went by the square
    assert seconds(word) < 10 * seconds(word[:50_000])
    tokenizer = train_tokenizer([word], names)
    assert tokenizer.decode(tokenizer(word).input_ids) == word


def test_a_long_text_gives_the_tokenizer_that_its_words_give() -> None:
    names = load_family("qwen2_5_vl").facts.token_names
    chance = np.random.RandomState(0)
    words = [
        "".join(chr(97 + letter) for letter in chance.randint(0, 7, 1 + n % 9)) for n in range(9000)
    ]
    marks = [" ", " ", " ", "  ", "\n", ". ", "'s ", " 12 ", "é ", "\t"]
    text = "".join(
        word + marks[mark] for word, mark in zip(words, chance.randint(0, 10, 9000), strict=True)
    )
    text += "end\n"
    long = text * 4
    assert len(long) > 2**17
    whole, pieces = train_tokenizer([text] * 4, names), train_tokenizer([long], names)
    assert pieces.get_vocab() == whole.get_vocab()
    assert pieces(text[:5000])["input_ids"] == whole(text[:5000])["input_ids"]


@pytest.mark.parametrize("text", ["a" * 10_000, " " * 10_000, "x\n" + "b" * 5001 + "\ty", "a b"])
def test_long_words_are_cut_as_they_were(text: str) -> None:
    longest = 2000
    expected = "".join(
        " ".join(part[start : start + longest] for start in range(0, len(part), longest))
        for part in re.split(r"(\s+)", text)
    )
    assert _without_long_words(text) == expected


def test_the_form_of_a_costly_template_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rendering would take all of its seconds."""
    monkeypatch.setattr(template_renderer, "_SECONDS", 0.3)
    tokenizer = train_tokenizer(["warm"], load_family("qwen2_5_vl").facts.token_names)
    assert find_form(tokenizer).closing == "<|im_end|>"
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    tokenizer.chat_template = endless + tokenizer.chat_template
    ask, asked = LimitedChild.ask, []

    def counted(self: Any, request: dict[str, Any]) -> Any:
        asked.append(request)
        return ask(self, request)

    monkeypatch.setattr(LimitedChild, "ask", counted)
    assert find_form(tokenizer) == TemplateForm()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("opens", "closes", "told"),
    [
        ("<|im_start|>assistant\n{% generation %}", "<|im_end|>{% endgeneration %}\n", None),
        ("<|im_start|>assistant\n{%- generation -%}", "<|im_end|>{%- endgeneration %}\n", None),
        ("<|im_start|>assistant\n{% generation %}", "<|im_end|>\n{% endgeneration %}", None),
        ("{% generation %}<|im_start|>assistant\n", "<|im_end|>{% endgeneration %}\n", "'<|im_st"),
        ("<|im_start|>assistant\n{% generation %}", "{% endgeneration %}<|im_end|>\n", "answers',"),
    ],
)
def test_marks_of_generation_are_held_against_what_inference_writes(
    opens: str, closes: str, told: str | None
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        f"{opens}{{{{ m.content }}}}{closes}"
        "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    given = tokenizer.chat_template
    found = differing_marks(tokenizer, find_form(tokenizer), Path("model"))
    assert tokenizer.chat_template == given
    assert [one.rule for one in found] == (["generation-marks-differ"] if told else [])
    assert told is None or told in found[0].message
