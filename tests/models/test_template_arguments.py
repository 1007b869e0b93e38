"""Arguments of a chat template, and templates that no chat can be rendered by."""

from pathlib import Path
from typing import Any

import pytest

from tests.models.templates import TEMPLATES, byte_tokenizer, processor_of
from vtool import template_renderer
from vtool.config.schema import Data
from vtool.data.chat import render_chat
from vtool.data.row import Row
from vtool.diagnostics import Findings
from vtool.models.chosen_template import choose_template, with_arguments

ASKED = {"role": "user", "content": "What color?"}
ANSWERED = {"role": "assistant", "content": "red"}
OFF = {"enable_thinking": False}


def test_arguments_stand_in_the_template_and_others_go_before_them() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = with_arguments(TEMPLATES["qwen3_5"], OFF)

    def prompt(**arguments: Any) -> str:
        return str(
            tokenizer.apply_chat_template(
                [ASKED], tokenize=False, add_generation_prompt=True, **arguments
            )
        )

    tokenizer.chat_template, baked = TEMPLATES["qwen3_5"], tokenizer.chat_template
    off, on = prompt(enable_thinking=False), prompt()
    tokenizer.chat_template = baked
    assert prompt() == off
    assert prompt(enable_thinking=True) == on
    for value in ("a'b", 'say "{{ 7*7 }}"', 7, 0.5, None, [1, {"a": True}], "é\n%}"):
        tokenizer.chat_template = with_arguments("\n {{ given | tojson }}", {"given": value})
        written = tokenizer.apply_chat_template([ASKED], tokenize=False)
        tokenizer.chat_template = "\n {{ given | tojson }}"
        assert written == tokenizer.apply_chat_template([ASKED], tokenize=False, given=value)


def test_an_argument_that_the_template_never_reads_is_refused() -> None:
    with pytest.raises(Findings) as caught:
        with_arguments(TEMPLATES["qwen3_5"], {"enable_thinkin": False, "effort": "low"})
    first, second = caught.value.diagnostics
    assert {first.rule, second.rule} == {"template-argument-unread"}
    assert first.help == "did you mean `enable_thinking`?"
    assert second.help == "it reads enable_thinking"
    with pytest.raises(Findings, match="no Jinja"):
        with_arguments("{% for %}", OFF)
    with pytest.raises(Findings, match="add_generation_prompt, which whoever renders"):
        with_arguments(TEMPLATES["qwen3_5"], {"add_generation_prompt": True})


def test_tools_of_the_arguments_are_those_of_rows_that_have_none() -> None:
    """A renderer always gives `tools`, as None where there are none."""
    tokenizer = byte_tokenizer()
    text = (
        f"{{% for tool in tools or [] %}}{{{{ tool.name }}}},{{% endfor %}}{TEMPLATES['qwen2_5']}"
    )
    tokenizer.chat_template = with_arguments(text, {"tools": [{"name": "look"}]})

    def written(tools: Any) -> str:
        return str(tokenizer.apply_chat_template([ASKED], tools=tools, tokenize=False))

    assert written(None).startswith("look,<|im_start|>")
    assert written([{"name": "find"}]).startswith("find,<|im_start|>")
    row = Row("r", [ASKED, ANSWERED], [])
    processor = processor_of(text, byte_tokenizer(), {"tools": [{"name": "look"}]})
    assert tokenizer.decode(render_chat(row, processor).ids).startswith("look,<|im_start|>")


def chosen(text: str, folder: Path, **arguments: Any) -> str:
    """The template that a tokenizer then has."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = text
    data = Data.model_construct(chat_template=None, template_arguments=arguments)
    choose_template(tokenizer, folder, data)
    return str(tokenizer.chat_template)


def test_an_argument_that_the_template_writes_and_nothing_gives_is_refused(tmp_path: Path) -> None:
    for written in (
        *("{{ own_name }}", "{{ own_name ~ '!' }}", "{{ 'I am ' + (own_name | trim) }}"),
        "{{ own_name.first }}",
    ):
        text = f"{written}{TEMPLATES['qwen2_5']}"
        with pytest.raises(Findings) as caught:
            chosen(text, tmp_path)
        (finding,) = caught.value.diagnostics
        assert (finding.rule, finding.help) == (
            "template-argument-missing",
            "data.template_arguments={own_name: …}",
        )
        assert chosen(text, tmp_path, own_name={"first": "Ada"} if "first" in text else "Ada")
    for healthy in (
        "{% if own_name is defined %}{{ own_name }}{% endif %}",
        "{{ own_name | default('I') }}",
        "{{ own_name or 'I' }}",
        "{{ messages[0].own_name }}{{ unk_token }}",
    ):
        assert chosen(f"{healthy}{TEMPLATES['qwen2_5']}", tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\n\n{% if %}", r"is no Jinja: line 3: Expected an expression"),
        ("\n{{ ''.__class__.__mro__ }}", r"cannot be rendered: line 2: access to attribute"),
        ("\n{% include 'other.jinja' %}", r"cannot be rendered: line 2: no loader"),
        ("\n{{ 1 / 0 }}", r"cannot be rendered: line 2: division by zero"),
        ("{% for i in range(9**9) %}{% endfor %}", r"cannot be rendered: line 1: Range too big"),
        (
            "\n" + 2 * "{% for i in range(99999) %}" + 2 * "{% endfor %}",
            r"than 0.5 seconds, in its line 2",
        ),
    ],
)
def test_a_template_that_no_chat_can_be_rendered_by_is_told_once_with_its_line(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_renderer, "_SECONDS", 0.5)
    with pytest.raises(Findings) as caught:
        chosen(text + TEMPLATES["qwen2_5"], tmp_path)
    (finding,) = caught.value.diagnostics
    assert finding.rule == "model-does-not-load"
    assert f"{tmp_path / 'chat_template.jinja'}: the chat template" in finding.message
    assert told in finding.message


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('no') }}",  # by its own words
        "{{ messages[0].name.strip() }}",  # rows may have it
        "{% if messages[0].content is string %}{{ 1 / 0 }}{% endif %}" + TEMPLATES["qwen2_5"],
        "{% if messages[0].role != 'system' %}{{ 1 / 0 }}{% endif %}" + TEMPLATES["qwen2_5"],
    ],
)
def test_a_template_that_other_chats_can_be_rendered_by_is_taken(text: str, tmp_path: Path) -> None:
    assert chosen(text, tmp_path) == text


@pytest.mark.parametrize(
    ("text", "value", "meant"),
    [
        (TEMPLATES["qwen3_5"], "false", False),
        (TEMPLATES["glm"], "No", False),
        # as Qwen3.5's own asks
        ("{% if x is defined and x is false %}A{% endif %}", "false", False),
        ("{% if x is defined and x is false %}A{% endif %}", None, False),
        ("{% if x is defined and x is false %}A{% endif %}", 0, False),
        ("{% if x is defined and x is true %}A{% endif %}", "on", True),
        ("{% if x is true %}A{% elif x is false %}B{% else %}C{% endif %}", "true", True),
        # healthy: it is a text, or the template asks for that one, or reads it as it is meant
        (TEMPLATES["qwen3_5"], "true", None),
        (TEMPLATES["qwen3_5"], None, None),
        ("{{ x }}", "false", None),
        ("{% if x == 'off' %}A{% endif %}", "off", None),
        ("{% if x == 'high' %}A{% endif %}", "off", None),
        ("{% if x == 'high' %}A{% endif %}", "high", None),
        ("{% if x is not none %}{{ x }}{% endif %}", None, None),
        ("{% if x is defined %}{{ x }}{% endif %}", 0, None),
        ("{% if x is defined and x is false %}A{% endif %}", False, None),
    ],
)
def test_an_argument_that_is_read_as_any_other_text_is_told(
    text: str, value: Any, meant: bool | None, tmp_path: Path
) -> None:
    """By Jinja's own words for what each template writes of the value and of the boolean."""
    name = "x" if "x " in text and text not in TEMPLATES.values() else "enable_thinking"
    whole = text if text in TEMPLATES.values() else text + TEMPLATES["qwen2_5"]
    if meant is None:
        assert chosen(whole, tmp_path, **{name: value})
        return
    with pytest.raises(Findings) as caught:
        chosen(whole, tmp_path, **{name: value})
    (finding,) = caught.value.diagnostics
    assert finding.rule == "template-argument-as-text"
    assert f"write {name}: {str(meant).lower()}" in str(finding.help)
