"""The words that a shell's completion reads: settings, values, rules, other tools' words.

It is written to `configs/completion.json`, since importing the schema takes longer than a shell may
wait.
"""

import json
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from vtool.config.foreign.words import WORDS
from vtool.config.resources import group_names
from vtool.config.schema import RECIPE_KINDS, Settings
from vtool.config.settings import Setting, all_settings, choices
from vtool.diagnostics import RULES

_MOST = 90


def completion_words(metrics: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the settings with what they take and their values, and the rules.

    Args:
        metrics: names of `vtool evaluate`'s, with what each says.
    """
    settings = {kind: dict(_settings(schema)) for kind, schema in RECIPE_KINDS.items()}
    rules = sorted((rule.code, rule.name, _short(rule.summary)) for rule in RULES.values())
    summaries = sorted((name, _short(says)) for name, says in metrics)
    return {**settings, "rules": rules, "foreign": sorted(WORDS), "metrics": summaries}


def _settings(schema: type[Settings]) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Yield each setting that can be given by name, with what it is and its likely values."""
    lists = [each.name for each in all_settings(schema) if _is_list(each)]
    seen = set()
    for setting in all_settings(schema):
        inside = any(setting.name.startswith(f"{name}.") for name in lists)
        chosen = group_names(setting.name)
        if inside or (setting.groups and setting.name not in lists and not chosen):
            continue
        if setting.name not in seen:
            seen.add(setting.name)
            words = list(dict.fromkeys([*chosen, *_values(setting)]))
            yield setting.name, (_first_sentence(setting), words)


def _is_list(setting: Setting) -> bool:
    """Return whether it is a list of groups: their settings have no names of their own."""
    return bool(setting.groups) and any(
        typing.get_origin(each) is tuple
        for each in (setting.field.annotation, *typing.get_args(setting.field.annotation))
    )


def _values(setting: Setting) -> Iterator[str]:
    default = setting.field.default
    if not setting.field.is_required() and not isinstance(default, Settings | None):
        yield default if isinstance(default, str) else json.dumps(default)
    if setting.field.annotation is bool:
        yield from ("true", "false")
    if not setting.groups:
        yield from choices(setting.field.annotation)


def _first_sentence(setting: Setting) -> str:
    return _short(" ".join(setting.doc.split()).partition(". ")[0]) or setting.takes


def _short(text: str) -> str:
    """Return plain text of one line: completion in zsh breaks at some signs."""
    return text.replace("`", "")[:_MOST].rstrip(". ")
