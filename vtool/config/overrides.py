"""Arguments `KEY=VALUE`, read with Hydra's grammar.

`optim=adamw` picks a file of a group; the others set values.
"""

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from vtool.config.limits import DEEPEST, LONGEST_OVERRIDE, MOST_DIGITS
from vtool.config.origins import COMMAND_LINE
from vtool.config.recipe_source import Composer
from vtool.config.suggest import example_of, meant_inside
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.words import first_line

_OF_THE_GRAMMAR = ("mismatched input", "no viable", "extraneous input", "token recognition")
"""Beginnings of messages of the parser, which name its own tokens."""


def parse_overrides(texts: Sequence[str]) -> list[Override]:
    """Parse every argument as an override that may set any key; the schema judges the keys later.

    Raises:
        Findings: `bad-override`, for every argument that is not one.
    """
    parser = OverridesParser.create()
    overrides, findings = [], []
    for text in texts:
        if problem := _too_large(text):
            findings.append(problem)
            continue
        try:
            override = parser.parse_override(text)
        except (HydraException, ValueError, RecursionError) as error:
            if (override := _of_json(parser, text)) is None:
                findings.append(_unparsable(text, error))
                continue
        if problem := _unusable(text, override):
            findings.append(problem)
        else:
            override.type = OverrideType.FORCE_ADD
            overrides.append(override)
    if findings:
        raise Findings(findings, fatal=True)
    return overrides


def _too_large(text: str) -> Diagnostic | None:
    """Return a finding for an argument that is larger than any setting, before it is parsed."""
    key, _, value = text.partition("=")
    deepest = depth = 0
    for letter in re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "", value):
        depth += (letter in "[{(") - (letter in "]})")
        deepest = max(deepest, depth)
    if len(text) > LONGEST_OVERRIDE:
        problem = f"it has {len(text)} characters, and at most {LONGEST_OVERRIDE} are read"
    elif max(deepest, key.count(".")) > DEEPEST:
        problem = f"it has more than {DEEPEST} groups or lists inside each other"
    elif re.search(rf"\d{{{MOST_DIGITS + 1}}}", text):
        problem = f"it has an integer of more than {MOST_DIGITS} digits"
    else:
        return None
    return _bad(f"`{text[:60]}…` cannot be read: {problem}", "put it into a recipe, or a file")


def _of_json(parser: OverridesParser, text: str) -> Override | None:
    """Return an override whose value is pasted JSON, whose keys have quotes; None for none."""
    key, _, value = text.partition("=")
    try:
        given = json.loads(value)
        override = parser.parse_override(f"{key}={_in_grammar(given)}")
        if override.value() != given:
            return None
    except (HydraException, ValueError, RecursionError):
        return None
    override.input_line = text
    return override


def _in_grammar(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (
            re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", key) + f": {_in_grammar(each)}"
            for key, each in value.items()
        )
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_in_grammar, value))}]"
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def _unparsable(text: str, error: Exception) -> Diagnostic:
    key, equals, value = text.partition("=")
    if not equals:
        example = example_of(text) or "KEY=VALUE, such as train.steps=500"
        return _bad(f"`{text}` is not KEY=VALUE", f"write {example}")
    if (dotted := re.sub(r"\[(\d+)\]", r".\1", key)) != key:
        return _bad(
            f"`{text}` cannot be read: an entry of a list is numbered after a dot",
            f"write {dotted}={value}",
        )
    if value.endswith(","):
        return _bad(f"`{text}` cannot be read: it ends with a comma", f"write {key}={value[:-1]}")
    why = first_line(error)
    if why.startswith(_OF_THE_GRAMMAR):
        why = "its value has characters that need quotes"
    return _bad(
        f"`{text}` cannot be read: {why}",
        f"quote the value, for vtool and for the shell: {as_typed(key, value)}",
    )


def _unusable(text: str, override: Override) -> Diagnostic | None:
    key = override.key_or_group
    if re.search("[\ud800-\udfff]", text):  # how Python keeps bytes that are not UTF-8
        return _bad(f"{text!r} is not text in UTF-8", None)
    if override.is_sweep_override():
        message, value = f"`{text}` gives several values, and a run has one", text.partition("=")[2]
        as_text = f"a text with a comma or brackets needs quotes: {as_typed(key, value)}"
        is_file = os.path.lexists(value)  # a name of one, and no list
        return _bad(message, as_text if is_file else f"a list is {key}=[{value}]; {as_text}")
    if override.is_delete():
        return _bad(
            f"`{text}` removes a setting, which cannot be done here",
            f"set it to null, or a list to []: {key}=null",
        )
    if override.package is not None or not key:
        return _bad(f"`{text}` does not name a setting", "write KEY=VALUE")
    return None


def as_typed(key: str, value: str) -> str:
    """Return an override as it is typed, quoted for the shell and for Hydra's grammar."""
    escaped = value.replace("'", "\\'")
    return f"\"{key}='{escaped}'\""


def choose_groups(
    overrides: Sequence[Override], composer: Composer
) -> list[tuple[tuple[str, ...], Diagnostic]]:
    """Mark the overrides that pick a file of a group: `optim=adamw`, and not `optim={lr: 1}`.

    Returns:
        For each that picks a file that is not there: the group, and `unknown-group-choice`.
    """
    repository = composer.repository
    choices = [
        each
        for each in overrides
        if repository.group_exists(each.key_or_group) and not isinstance(each.value(), dict)
    ]
    if not choices:
        return []
    missing: list[tuple[tuple[str, ...], Diagnostic]] = []
    for override in choices:
        group, choice = override.key_or_group, override.value()
        if not isinstance(choice, str) or not repository.config_exists(f"{group}/{choice}"):
            options = repository.get_group_options(group)
            finding = Diagnostic(
                "unknown-group-choice",
                (
                    f"`{group}` picks a file of configs/{group}, and there is none for"
                    f" `{override.input_line}`"
                ),
                (
                    did_you_mean([f"{group}={option}" for option in near(str(choice), options)])
                    or meant_inside(group, choice)
                    or f"there are: {', '.join(options)}"
                ),
                group,
                COMMAND_LINE,
            )
            missing.append(((group,), finding))
    listed = composer.defaults_list([], skip_missing=True)
    for override in choices:
        override.type = (
            OverrideType.CHANGE
            if override.key_or_group in listed.overrides.known_choices
            else OverrideType.ADD
        )
    return missing


def _bad(message: str, help: str | None) -> Diagnostic:
    return Diagnostic("bad-override", message, help, origin=COMMAND_LINE)


def quoted(text: str) -> str:
    """Quote a text, so that the grammar of overrides takes it as one value.

    A backslash stands for itself there, but before a quote.
    """
    escaped = re.sub(r"(\\+)(?='|\Z)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"
