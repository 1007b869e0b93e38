"""Values that a trainer refuses: of another type than its setting, or none of its choices."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vtool.config.foreign.known_words import KnownWords, known_words
from vtool.config.foreign.theirs import listed_words
from vtool.config.foreign.words import WORDS
from vtool.config.origins import ValuePosition
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.near_miss import did_you_mean, near, one_of

_TRUE, _FALSE = ("yes", "true", "t", "y", "1", "on"), ("no", "false", "f", "n", "0", "off")
"""Words that transformers' parser or pydantic takes for a truth."""
_NUMBERS = {"int": "a whole number", "float": "a number"}
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_LISTS = ("report_to", "trainer.logger")
"""Settings that take one of their choices, or a list of these."""
_FEW = 12
"""Choices that a message names."""
_BY_PLUGIN: Mapping[str, tuple[str, ...]] = {
    "external_plugins": ("template", "model_type", "tuner_type"),
    "custom_register_path": ("template", "model_type", "tuner_type"),
    "plugins": ("adapter", "optimizer", "lr_scheduler"),
}
"""By setting that loads code of others: the settings whose choices that code may add to."""
_ADDS = re.compile(r"(?!axolotl\.integrations\.(?!mora|mixlora))")
"""The names of plug-ins that may add choices: all but axolotl's own, of which two do."""
_REFUSED = object()


@dataclass(frozen=True, slots=True)
class CheckedValues:
    """The settings of a recipe, and those of its values that the trainer refuses."""

    given: dict[str, Any]
    """Each with the type that the trainer reads it as; None in the place of what it refuses."""
    refused: dict[str, Any]
    findings: list[Diagnostic]


def check_values(
    trainer: str,
    title: str,
    given: Mapping[str, Any],
    places: Mapping[str, ValuePosition],
    choices: Mapping[str, str] | None = None,
) -> CheckedValues:
    """Check each value against what its setting takes in the release that is judged by.

    Args:
        trainer: a name that `--from` takes.
        title: the trainer, in messages.
        given: the settings; a value that is None is not known.
        choices: by group of Hydra's, the file that is chosen.
    """
    known = known_words(trainer)
    added = {
        one
        for plugin, words in _BY_PLUGIN.items()
        if any(map(_ADDS.match, listed_words(given.get(plugin))))
        for one in words
    }
    checked = CheckedValues(dict(given), {}, [])
    for name, value in given.items():
        kinds = _kinds(known, trainer, name, choices or {})
        if value is None or not kinds or name in added:
            continue
        read = _read(value, kinds, texts=trainer != "verl", several=name in _LISTS)
        if read is not _REFUSED:
            checked.given[name] = read
            continue
        checked.given[name], checked.refused[name] = None, value
        place = places.get(name)
        default = known.fields.get(name)
        rule, message, help = _refusal(f"{title} {known.release}", name, value, kinds, default)
        checked.findings.append(
            Diagnostic(rule, message, help, name, place.value if place else None)
        )
    return checked


def hangs_on(name: str, unread: Iterable[str]) -> bool:
    """Return whether a setting says more of what an unread one names: rows, or adapters."""
    ours = {_ours(one) for one in unread} - {""}
    groups = {one.partition(".")[0] for one in ours} & {"lora"}
    return _ours(name) in ours or _ours(name).partition(".")[0] in groups


def _ours(name: str) -> str:
    word = WORDS.get(name.rpartition(".")[2])
    return (word.ours or "") if word else ""


def without_guesses(
    findings: Iterator[Diagnostic], refused: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """Yield findings without those that a default in the place of a refused value would bring."""
    for one in findings:
        words = {one.parameter, *one.message.replace(",", " ").replace(":", " ").split()}
        if words.isdisjoint(refused):
            yield one


def _kinds(known: KnownWords, trainer: str, name: str, choices: Mapping[str, str]) -> list[str]:
    group = name.partition(".")[0]
    kind = known.takes.get(f"{group}={choices.get(group)}:{name}") or known.takes.get(name, "")
    if trainer == "axolotl" and name in _OF_TRANSFORMERS:
        kind += "|" + known_words("trl").takes[_OF_TRANSFORMERS[name]]
    return kind.split("|") if kind else []


_OF_TRANSFORMERS = {"lr_scheduler": "lr_scheduler_type", "optimizer": "optim"}
"""By setting of axolotl's that it hands to transformers, beside its own choices: the word there."""


def _read(value: Any, kinds: list[str], *, texts: bool, several: bool = False) -> Any:
    """Return a value as the trainer reads it; `_REFUSED` where it does not.

    Args:
        texts: whether it makes a number of text.
        several: whether it takes a list.
    """
    if several and isinstance(value, str):
        value = listed_words(value)
    if isinstance(value, list) and several:
        return value if all(_read(one, kinds, texts=texts) == one for one in value) else _REFUSED
    words = [kind[1:] for kind in kinds if kind.startswith("=")]
    text = str(value)
    # YAML reads `no` as false; as a number, it is 0
    off = words if {"no", "none", "disabled"} & {*words} else {"int", "float"} & {*kinds}
    if text in words or (words and text == "None") or (value is False and off):
        return value
    if "bool" in kinds and isinstance(value, str | int) and text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    number = _number(value, texts)
    fits = "float" in kinds or ("int" in kinds and (number is None or number % 1 == 0))
    return number if fits and number is not None else _REFUSED


def _number(value: Any, texts: bool) -> int | float | None:
    if isinstance(value, bool) or not isinstance(
        value, (str, int, float) if texts else (int, float)
    ):
        return None
    if not isinstance(value, str):
        return value
    try:
        return int(value) if value.lstrip("-").isdecimal() else float(value)
    except ValueError:
        return None


def _refusal(
    release: str, name: str, value: Any, kinds: list[str], default: Any
) -> tuple[str, str, str | None]:
    words = ["true", "false"] if "bool" in kinds else []
    words += [kind[1:] for kind in kinds if kind.startswith("=")]
    plain = [_NUMBERS[kind] for kind in kinds if kind in _NUMBERS]
    if several := name in _LISTS:
        value = next((one for one in listed_words(value) if one not in words), value)
    seen = json.dumps(value, ensure_ascii=False, default=str)
    short = {word: full for word, full in _SHORT.items() if full in words}
    close = near(str(value), [*words, *short])
    help = did_you_mean(list(dict.fromkeys(short.get(one, one) for one in close)))
    if help is None and len(words) > _FEW:
        help = f"it takes {one_of(words)}"
    elif help is None:
        example = "a number" if plain else f"`{words[0]}`" if words else "a value of that kind"
        help = f"set {name} to {example}, or leave it out"
        help += f": it is {json.dumps(default)} then" if default is not None else ""
    listed = f"one of {len(words)} words" if len(words) > _FEW else one_of(words) if words else ""
    takes = " or ".join(filter(None, [*plain, listed]))
    lists = ", or a list of these" if several else ""
    rule = "unknown-choice" if words and "bool" not in kinds else "wrong-type"
    return rule, f"`{name}` of {release} takes {takes}{lists}, not {seen}", help
