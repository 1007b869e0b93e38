"""The chat template of a tokenizer: which it is, its arguments, and the form of chats it takes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic
from vtool.diagnostics.diagnostic import Severity
from vtool.limited_child import TooCostly
from vtool.model_folder import ModelFolder
from vtool.models.template_limits import LimitedTemplate

THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Keys by which messages have a thought; a template reads one of them, if any."""
THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
_ASKS, _ANSWERS, _THINKS = "vtool asks", "vtool answers", "vtool thinks"
_OF_DOCUMENTS = re.compile(r"<\|(?:(?:end|begin|start)_?of_?(?:text|document)|pad|bos|eos)\|>")
"""Marks of a base model's documents: its tokenizer has them, whatever its chats were taught by."""
_MARK = re.compile(r"<\|[^\s<>|]+\|>|<(?:start|end)_of_\w+>")
_PIECES = re.compile(r"<[^<>]*>|\w+")
_ROLE = re.compile(r"(?:<(?!think>)[^<>]*>)*\w*")
"""The beginning of an answer's turn: marks, and the word behind them."""
_GENERATION = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")
_OPENS, _CLOSES = "\ue000", "\ue001"
"""Characters of no meaning in place of the marks."""
_CALL = {"type": "function", "function": {"name": "vtool_calls", "arguments": {"x": 1}}}


@dataclass(frozen=True, slots=True)
class TemplateForm:
    """The form of chats that a template takes, as its own renderings show it."""

    thought: str | None = None
    """The key of a message by which it is given a thought; None where it writes none."""
    parts_only: bool = False
    """If it writes a message's content only where that is a list of parts."""
    text_only: bool = False
    """If it writes a message's content only where that is a text."""
    closing: str = ""
    """The token that follows an answer; "" for none."""
    closed_by_next: bool = False
    """If that is the next role's (GLM's `<|user|>`), so that the last answer has none."""
    closing_call: str = ""
    """The token that follows a call of a tool in that case (GLM's `<|observation|>`)."""
    spelt: tuple[str, ...] = ()
    """The marks that it writes, and that the tokenizer has no token for."""
    all_spelt: bool = False
    """If the tokenizer has tokens for none of its marks."""
    role_learnt: str = ""
    """The text of a role that its prompt leaves out, and that is learnt before each answer."""
    rewrites_turns: bool = False
    """If it writes an earlier answer in another way than the last one."""
    rewrites_thoughts: bool = False
    """If it leaves out the thoughts of earlier answers, or writes them in another way."""

    def shaped(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return messages as the template takes them, with nothing added or left out."""
        return [self._shaped(message) for message in messages]

    def _shaped(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        content = message.get("content")
        if self.text_only and isinstance(content, list) and _is_text(content):
            message = {**message, "content": "".join(part["text"] for part in content)}
        if message["role"] == "assistant" and self.thought:
            message = with_thought_as(message, self.thought)
        if self.parts_only and isinstance(message.get("content"), str):
            return {**message, "content": [{"type": "text", "text": message["content"]}]}
        return message


def _is_text(content: Sequence[Any]) -> bool:
    return all(isinstance(part, dict) and part.get("type") == "text" for part in content)


def has_two_thoughts(message: Mapping[str, Any]) -> bool:
    """Return whether a message has a thought at a key, and another one in its content."""
    if not any(message.get(key) for key in THOUGHT_KEYS):
        return False
    rest = {name: value for name, value in message.items() if name not in THOUGHT_KEYS}
    return bool(thought_of(rest))


def with_thought_as(message: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a message whose thought, if it has one, is at a key, and not in its content."""
    own = next((each for each in THOUGHT_KEYS if message.get(each)), None)
    if own is not None:
        if own == key or message.get(key):
            return message
        return {
            **{name: value for name, value in message.items() if name != own},
            key: message[own],
        }
    content = message.get("content")
    first = content
    if isinstance(content, list):
        first = content[0].get("text") if content and content[0].get("type") == "text" else None
    if not isinstance(first, str) or not (found := THOUGHT.match(first)):
        return message
    rest: Any = first[found.end() :]
    if isinstance(content, list):
        rest = [{**content[0], "text": rest}, *content[1:]]
    return {**message, "content": rest, key: found[1].strip("\n")}


def thought_of(message: Mapping[str, Any]) -> str:
    """Return the thought of a message, at one of its keys or in its content; "" for none."""
    found = with_thought_as(message, THOUGHT_KEYS[0])
    return str(next((found[key] for key in THOUGHT_KEYS if found.get(key)), ""))


@LimitedTemplate()
def find_form(tokenizer: Any) -> TemplateForm:
    """Return the form of chats that a tokenizer's template takes: it is tried on small ones."""
    try:
        return _found_form(tokenizer)
    except TooCostly:
        return TemplateForm()  # each row will say that


def _found_form(tokenizer: Any) -> TemplateForm:
    form = TemplateForm()
    asks, answers = _message("user", _ASKS), _message("assistant", _ANSWERS)
    chat = [asks, answers, asks]
    text = _rendered(tokenizer, form, chat)
    parts = _rendered(tokenizer, TemplateForm(parts_only=True), chat)
    takes_parts = _ANSWERS in parts and "'type'" not in parts
    if _ANSWERS not in text and not takes_parts:
        return form  # each row will say what is wrong
    if _ANSWERS not in text:
        form, text = replace(form, parts_only=True), parts
    elif not takes_parts:
        form = replace(form, text_only=True)
    closing = _first_token(tokenizer, text.partition(_ANSWERS)[2])
    last = _rendered(tokenizer, form, [asks, answers]).partition(_ANSWERS)[2]
    form = replace(form, closing=closing, closed_by_next=bool(closing) and closing not in last)
    marks = dict.fromkeys(_MARK.findall(_rendered(tokenizer, form, [asks, answers, asks, answers])))
    vocabulary = tokenizer.get_vocab()
    spelt = tuple(mark for mark in marks if mark not in vocabulary)
    of_chats = [mark for mark in marks if not _OF_DOCUMENTS.fullmatch(mark)]
    form = replace(form, spelt=spelt, all_spelt={*of_chats} <= {*spelt})
    form = replace(form, role_learnt=_role_learnt(tokenizer, form, asks, answers))
    if form.closed_by_next:
        calls = [asks, {**answers, "tool_calls": [_CALL]}]
        called = _rendered(tokenizer, form, calls)
        behind = _rendered(tokenizer, form, [*calls, _message("tool", "1")]).removeprefix(called)
        form = replace(form, closing_call=_first_token(tokenizer, behind))
    for key in THOUGHT_KEYS:
        thinking = [asks, {**answers, key: _THINKS}]
        if _THINKS in _rendered(tokenizer, form, thinking):
            form = replace(form, thought=key)
            break
    thinks = _message("assistant", f"<think>\n{_THINKS}\n</think>\n\n{_ANSWERS}")
    return replace(
        form,
        rewrites_turns=_rewrites(tokenizer, form, answers),
        rewrites_thoughts=_rewrites(tokenizer, form, thinks),
    )


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _rendered(
    tokenizer: Any, form: TemplateForm, chat: Sequence[Mapping[str, Any]], *, prompt: bool = False
) -> str:
    try:
        return str(
            tokenizer.apply_chat_template(
                form.shaped(chat), tokenize=False, add_generation_prompt=prompt
            )
        )
    except (MemoryError, TooCostly):
        raise
    except Exception:  # a template is a program, and raises whatever it likes
        return ""


def _rewrites(tokenizer: Any, form: TemplateForm, answer: Mapping[str, Any]) -> bool:
    asks = _message("user", _ASKS)
    whole = _rendered(tokenizer, form, [asks, answer, asks, answer])
    return not all(
        whole.startswith(part)
        for part in (
            _rendered(tokenizer, form, [asks], prompt=True),
            _rendered(tokenizer, form, [asks, answer]).rstrip(),
        )
    )


def _role_learnt(
    tokenizer: Any, form: TemplateForm, asks: Mapping[str, Any], answers: Mapping[str, Any]
) -> str:
    """Return the text that is learnt before an answer, if a role is in it; "" for none."""
    whole = _rendered(tokenizer, form, [asks, answers])
    asked, prompt = (_rendered(tokenizer, form, [asks], prompt=each) for each in (False, True))
    if not (asked and whole.startswith(asked) and whole.startswith(prompt)):
        return ""
    opening, learnt = (
        whole.removeprefix(text).partition(_ANSWERS)[0].lstrip() for text in (asked, prompt)
    )
    role = _ROLE.match(opening)
    pieces = _PIECES.findall(role[0]) if role else []
    return learnt if {*pieces} & {*_PIECES.findall(learnt)} else ""


def learnt_role(form: TemplateForm, folder: Path) -> tuple[Diagnostic, ...]:
    """Return the error about a template whose prompt for an answer leaves the role out, if any."""
    if not form.role_learnt:
        return ()
    message = (
        f"{folder}: the chat template writes {form.role_learnt!r} before an answer, and its prompt"
        " for one (add_generation_prompt) leaves that out: it is learnt as a part of each answer,"
        " and a server whose prompt has it is given another model"
    )
    help = "take the published template, or name another: data.chat_template=FILE"
    return (Diagnostic("prompt-supervised", message, help, parameter="data.chat_template"),)


def _first_token(tokenizer: Any, text: str) -> str:
    """Return the added token that a text begins with, behind blanks; "" for none."""
    text = text.lstrip()
    added = (str(token) for token in tokenizer.get_added_vocab())
    return max((token for token in added if text.startswith(token)), key=len, default="")


def spelt_marks(form: TemplateForm, folder: Path) -> tuple[Diagnostic, ...]:
    """Return the finding about marks of the template that the tokenizer has no tokens for, if any.

    A note where it has none of them: some models were trained on marks of plain text, as Zephyr.
    """
    if not form.spelt:
        return ()
    message = (
        f"{folder}: the chat template writes {', '.join(form.spelt)}, which the tokenizer has no"
        f" token{'s' * (len(form.spelt) > 1)} for: plain text is learnt in its place"
    )
    help = "take the tokenizer and the template of one model, or add the tokens to the tokenizer"
    severity: Severity = "note" if form.all_spelt else "warning"
    return (Diagnostic("mark-not-token", message, help, "data.chat_template", severity=severity),)


@LimitedTemplate()
def differing_marks(tokenizer: Any, form: TemplateForm, folder: Path) -> tuple[Diagnostic, ...]:
    """Return a note where a template's `{% generation %}` marks are not what inference writes.

    Trainers that learn what is between them (`assistant_only_loss` of TRL) then learn other tokens.
    """
    template = str(tokenizer.chat_template)
    if not _GENERATION.search(template) or not form.closing:
        return ()
    asks, answers = _message("user", _ASKS), _message("assistant", _ANSWERS)
    prompt = _rendered(tokenizer, form, [asks], prompt=True)
    whole = _rendered(tokenizer, form, [asks, answers])
    if not prompt or not whole.startswith(prompt):
        return ()  # each row will say it
    written, closed, _ = whole.removeprefix(prompt).partition(form.closing)
    written += closed
    inside = {"": _OPENS, "end": _CLOSES}
    tokenizer.chat_template = _GENERATION.sub(
        lambda found: f"{{{{{found[1]} '{inside[found[2] or '']}' {found[3]}}}}}", template
    )
    try:
        marked = _rendered(tokenizer, form, [asks, answers])
    finally:
        tokenizer.chat_template = template
    marked = "".join(part.partition(_CLOSES)[0] for part in marked.split(_OPENS)[1:])
    if marked.rstrip() == written:  # a newline behind the end is never asked of the model
        return ()
    message = (
        f"{folder}: the {{% generation %}} marks of the chat template are around {marked!r}, where"
        f" inference writes {written!r}, which is what vtool supervises; trainers that go by the"
        " marks teach something else"
    )
    return (Diagnostic("generation-marks-differ", message, parameter="data.chat_template"),)


def differing_templates(folder: Path) -> tuple[Diagnostic, ...]:
    """Return the warning about a folder whose files have chat templates that differ, if any."""
    found = ModelFolder(folder).templates
    if len(set(found.values())) < 2:
        return ()
    used, *others = found
    message = (
        f"{folder}: the chat templates of {used} and {' and '.join(others)} differ;"
        f" transformers' processors, vLLM and vtool take {used}'s"
    )
    help = f"remove the one that is not meant, or name a file: data.chat_template={folder / used}"
    return (Diagnostic("templates-differ", message, help, parameter="data.chat_template"),)
