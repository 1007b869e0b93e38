"""The chat template that the settings ask for: which it is, its arguments, and if it renders."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, UndefinedError, meta
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vtool.config.schema import Data
from vtool.contents import small_file
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.limited_child import TooCostly
from vtool.model_folder import TEMPLATE, TEMPLATE_JSON, ModelFolder
from vtool.template_renderer import LimitedRendering
from vtool.words import first_line

_GIVEN = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"),
        *("raise_exception", "strftime_now", "namespace", "dict", "range", "pad_token"),
    }
)
"""Names that every template is given, which no setting changes."""
_BOOLEANS: Mapping[Any, bool] = {
    **dict.fromkeys(("true", "yes", "on", "1", 1), True),
    **dict.fromkeys(("false", "no", "off", "0", 0, None), False),
}
"""Booleans by the values of other kinds that people write for them."""
_NONE = frozenset({"tools", "documents"})
"""Names that are None where a chat has none: the value of the setting is then taken."""
_ASKS: dict[str, Any] = {"role": "user", "content": "vtool asks"}
_ANSWERS: dict[str, Any] = {"role": "assistant", "content": "vtool answers"}
_THINKS = {**_ANSWERS, "reasoning_content": "vtool thinks"}


def choose_template(tokenizer: Any, folder: Path, settings: Data | None) -> None:
    """Give a tokenizer the chat template that the settings ask for, with their arguments.

    These stand at the template's beginning, so that whoever renders it later, a server too, has
    the same; an argument that is given to a rendering goes before them.

    Args:
        folder: the tokenizer's.
        settings: None: the template is the folder's.

    Raises:
        Findings: `model-does-not-load`, where there is no such template, none at all, or one that
            cannot be rendered; `template-argument-unread`, `template-argument-missing`,
            `template-argument-as-text`.
    """
    asked = settings.chat_template if settings else None
    given, files = tokenizer.chat_template, ModelFolder(folder).templates
    if TEMPLATE not in files:  # a processor's goes before its tokenizer's
        given = files.get(TEMPLATE_JSON, given)
    text = _chosen(given, asked, folder)
    where = f"data.chat_template={asked}" if asked else str(folder / next(iter(files), TEMPLATE))
    if arguments := settings.template_arguments if settings else {}:
        where = f"{where}, with data.template_arguments"
    special = tokenizer.special_tokens_map
    _check_rendered(text, where, {**special, **arguments})
    tokenizer.chat_template = with_arguments(text, arguments) if arguments else text
    if odd := [*_as_texts(text, special, arguments)]:
        raise Findings(odd)


def _chosen(given: Any, asked: str | None, folder: Path) -> str:
    named: Mapping[str, str] = given if isinstance(given, dict) else {}
    if asked is None:
        if named and "default" not in named:
            raise _no_template(
                f"{folder}: the tokenizer has chat templates {', '.join(sorted(named))}, and none"
                " is the default",
                f"data.chat_template={min(named)}",
            )
        if not (text := named.get("default", "") if named else given):
            raise _no_template(
                f"{folder}: the tokenizer has no chat template ({TEMPLATE})",
                "data.chat_template=FILE gives one",
            )
        return str(text)
    if asked in named:
        return named[asked]
    file = Path(asked)
    try:
        return small_file(file).decode()
    except (OSError, ValueError) as error:
        known = ", ".join(sorted(named))
        there = f"; the folder's own are {known}" if named else ""
        why = error.strerror if isinstance(error, OSError) else first_line(error)
        message = f"data.chat_template is {asked}, which cannot be read: {why}{there}"
        raise _no_template(message, did_you_mean(near(asked, named))) from error


def _no_template(message: str, help: str | None) -> Findings:
    return Findings(
        Diagnostic("model-does-not-load", message, help, parameter="data.chat_template")
    )


def with_arguments(template: str, arguments: Mapping[str, Any]) -> str:
    """Return a template that has these arguments where a rendering gives it no others.

    Raises:
        Findings: `template-argument-unread`; `model-does-not-load`, where it is no Jinja.
    """
    known = read_names(template)
    if unread := [name for name in arguments if name not in known or name in _GIVEN - _NONE]:
        raise Findings(_unread(unread, sorted(known - _GIVEN)))
    lines = [
        f"{{% set {name} = {name} if {name} is defined{' and ' + name if name in _NONE else ''}"
        f" else {value!r} %}}\n"  # trim_blocks
        for name, value in arguments.items()
    ]
    return "".join(lines) + template


def _unread(unread: Sequence[str], read: Sequence[str]) -> Iterator[Diagnostic]:
    for name in unread:
        help = did_you_mean(near(name, read)) or (
            f"it reads {', '.join(read)}" if read else "it reads no argument: leave it out"
        )
        why = "the chat template never reads"
        if name in _GIVEN:
            why = "whoever renders the template gives anew each time"
        yield Diagnostic(
            "template-argument-unread",
            f"data.template_arguments has {name}, which {why}",
            help,
            parameter="data.template_arguments",
        )


def read_names(template: str) -> frozenset[str]:
    """Return the names that a template reads and does not set before.

    Raises:
        Findings: `model-does-not-load`, where it is no Jinja.
    """
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    marks = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(marks.sub("", template))))
    except (TemplateError, RecursionError, ValueError) as error:
        raise _no_template(f"the chat template is no Jinja: {first_line(error)}", None) from error


def _check_rendered(template: str, where: str, given: Mapping[str, Any]) -> None:
    """Refuse a template that can be rendered for no chat, or that writes what nothing gives.

    Args:
        where: its file, or the setting that names it.
        given: the arguments, and the special tokens.
    """
    rendering, missing = LimitedRendering(template), list[str]()
    refusals = set[str]()
    for chat in _in_shapes([_ASKS, _ANSWERS, _ASKS]):
        what = "cannot be rendered"
        try:
            rendering.render(messages=chat, tools=None, documents=None, **given)
        except (TemplateSyntaxError, SecurityError, OverflowError, TooCostly) as error:
            if isinstance(error, TemplateSyntaxError):
                what = "is no Jinja"
            raise _of_template(where, what, error, rendering.line) from error
        except UndefinedError as error:
            found = re.findall(r"^'(\w+)' is undefined$", str(error))
            missing += [name for name in found if name in read_names(template) - _GIVEN]
            break  # else each row will say it
        except TemplateError:  # by its own words: it takes other chats
            return
        except Exception as error:
            last, line = error, rendering.line
            refusals.add(f"{line} {error}")
        else:  # Jinja writes nothing there
            missing += [name for name in rendering.unknown if not name.endswith("_token")]
            break
    else:
        if len(refusals) == 1:  # whatever the chat
            raise _of_template(where, what, last, line) from last
    if missing:
        written = ", ".join(f"{name}: …" for name in missing)
        raise Findings(
            Diagnostic(
                "template-argument-missing",
                f"the chat template writes {', '.join(missing)}, which nothing gives",
                f"data.template_arguments={{{written}}}",
                parameter="data.template_arguments",
            )
        )


def _in_shapes(chat: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield a chat as texts, as parts, and with a system's message and pictures."""
    parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in chat]
    system = {**parts[0], "role": "system"}
    shown = {**parts[0], "content": [{"type": "image"}, *parts[0]["content"]]}
    yield from (chat, parts, [{**chat[0], "role": "system"}, *chat], [system, shown, *parts[1:]])


def _of_template(where: str, what: str, error: Exception, line: int | None) -> Findings:
    at = "" if line is None or isinstance(error, TooCostly) else f"line {line}: "
    help = "take the published template, or name another: data.chat_template=FILE"
    return _no_template(f"{where}: the chat template {what}: {at}{first_line(error)}", help)


def _as_texts(
    template: str, special: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """Yield the arguments that stand for a boolean, and that the template takes for another.

    Such a one is read as any other text is, and not as the boolean. What the template writes, or
    compares with a text, is not.
    """
    shown = {**_ASKS, "content": [{"type": "image"}, {"type": "video"}]}
    chats = [[_ASKS], [_ASKS, _ANSWERS], [_ASKS, _THINKS, _ASKS, _THINKS]]
    chats = [shape for chat in chats for shape in _in_shapes(chat)]
    rendering = LimitedRendering(template)

    def written(name: str, value: Any) -> list[str]:
        texts = []
        for chat in (*chats, [shown]):
            given = {**special, **arguments, name: value, "tools": None, "documents": None}
            try:
                texts += [rendering.render(messages=chat, add_generation_prompt=True, **given)]
            except Exception:  # it takes other chats
                texts += [""]
        return texts

    for name, value in arguments.items():
        word = value.strip().lower() if isinstance(value, str) else value
        if isinstance(value, bool | list | dict | float) or word not in _BOOLEANS:
            continue
        meant = _BOOLEANS[word]
        own, other, any_text = written(name, value), written(name, meant), written(name, "vtool")
        if any(a == c != b for a, b, c in zip(own, other, any_text, strict=True)):
            shown_as, spelt = ("null" if value is None else repr(value)), str(meant).lower()
            yield Diagnostic(
                "template-argument-as-text",
                f"data.template_arguments has {name}: {shown_as}, which the chat template does not"
                f" read as {spelt}, but as any other text",
                f"write {name}: {spelt}{', without quotes' * isinstance(value, str)}",
                parameter="data.template_arguments",
            )
