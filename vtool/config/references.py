"""References `${key}` and `${resolver:…}`: OmegaConf follows them; those that it cannot are named.

OmegaConf follows a reference anew each time: thirty lines of `${a}${a}` end in 2³⁰ of them. So more
than a few are followed in a process that the kernel limits.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf._utils import split_key
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar_parser import parse

from vtool.config.limited import in_child
from vtool.config.limits import FEW_REFERENCES
from vtool.config.origins import Key
from vtool.words import first_line

_RESOLVERS = (
    "oc.env",
    "oc.decode",
    "oc.create",
    "oc.select",
    "oc.deprecated",
    "oc.dict.keys",
    "oc.dict.values",
)


class _Refused:
    """Counts the calls of resolvers that were refused."""

    calls = 0


def refuse_resolvers() -> None:
    """Have this process call no resolver: what refers to one is not known."""

    def refuse(*_: Any) -> None:
        _Refused.calls += 1
        raise ValueError("a resolver is not called (--untrusted)")

    for name in _RESOLVERS:
        OmegaConf.register_new_resolver(name, refuse, replace=True)


class Unfollowed(str):
    """A text whose references were not followed, and still are references."""


@dataclass(frozen=True, slots=True)
class ResolvedValues:
    """A recipe's values, each reference replaced by what it leads to."""

    values: Any
    broken: Mapping[Key, str]
    """By place of a value that leads nowhere, and is None here, why."""
    unread: Mapping[Key, str]
    """By place of a value that a resolver decides, which is not called, its text."""


def resolve_references(values: Any) -> ResolvedValues:
    """Follow all references of a recipe.

    Raises:
        Findings: they lead to too much.
    """
    if sum(text.count("${") for text in _texts(values)) > FEW_REFERENCES:
        found: ResolvedValues = in_child(_resolved, values, trusted=True)
        return found
    return _resolved(values)


def _resolved(values: Any) -> ResolvedValues:
    state = _State(values)
    config = OmegaConf.create(state.readable(values, ()))
    resolved = state.value(values, config, ())
    return ResolvedValues(resolved, state.first_broken(), state.unread)


@dataclass(slots=True)
class _State:
    raw: Any
    broken: dict[Key, str] = field(default_factory=dict)
    unread: dict[Key, str] = field(default_factory=dict)

    def readable(self, raw: Any, place: Key) -> Any:
        """Return a value without the texts that OmegaConf's grammar does not have."""
        if isinstance(raw, dict | list):
            made = {key: self.readable(each, (*place, str(key))) for key, each in _entries(raw)}
            return made if isinstance(raw, dict) else [*made.values()]
        try:
            if isinstance(raw, str) and "${" in raw:
                parse(raw)
        except (OmegaConfBaseException, RecursionError) as error:
            self.broken[place] = first_line(error)[:200]
            return None
        return raw

    def value(self, raw: Any, config: Any, place: Key) -> Any:
        """Return a value with its references followed; None where one leads nowhere."""
        made = {}
        for key, entry in _entries(raw):
            at = (*place, str(key))
            if isinstance(entry, dict | list):
                made[key] = self.value(entry, config[key], at)
            elif isinstance(entry, str) and "${" in entry:
                made[key] = self.text(entry, config, key, at)
            else:
                made[key] = entry
        return made if isinstance(raw, dict) else [*made.values()]

    def text(self, text: str, config: Any, key: Any, place: Key) -> Any:
        """Return the value of a text with references."""
        if place in self.broken:
            return None
        refused = _Refused.calls
        try:
            found = config[key]
            is_group = isinstance(found, DictConfig | ListConfig)
            return OmegaConf.to_container(found, resolve=True) if is_group else found
        except (OmegaConfBaseException, RecursionError) as error:
            reason = first_line(error)
        if _Refused.calls > refused:
            self.unread[place] = text
            return Unfollowed(text)
        self.broken[place] = _in_words(reason, text)
        return None

    def first_broken(self) -> dict[Key, str]:
        """Return the broken references that do not merely lead to broken ones.

        Of a circle, the first is told.
        """
        found: dict[Key, str] = {}
        for place, reason in self.broken.items():
            behind = self.behind(place)
            if not behind or (place in behind and behind.isdisjoint(found)):
                found[place] = _ITSELF if place in behind else reason
        return found

    def behind(self, place: Key) -> set[Key]:
        """Return the broken references that one leads to, at once or by way of others."""
        found: set[Key] = set()
        left = [place]
        while left:
            for target in _targets(self.raw, left.pop()):
                for each in self.broken.keys() - found:
                    if each[: len(target)] == target or target[: len(each)] == each:
                        found.add(each)
                        left.append(each)
        return found


_PLAIN = re.compile(r"\$\{(?:oc\.[a-z.]+:)?(\.*)([^\s${}:,.][^\s${}:,]*)")


def _targets(raw: Any, place: Key) -> Iterator[Key]:
    """Yield the places that the keys in a text mean; a dot before one is the group of the text."""
    for up, key in _PLAIN.findall(str(value_at(raw, place))):
        yield (*(place[: -len(up)] if up else ()), *split_key(key))


_WORDS = {
    "Missing mandatory value: (.+)": "`{}`, which is left open (???)",
    "(Environment variable '.*' not found)": "{}",
    "Key not found: '(.+)'": "Interpolation key '{}' not found",
    "[Rr]ecursi(on|ve)": "too many references one after the other",
}
"""By text of OmegaConf's, what it means."""
_ITSELF = "itself, at once or by way of others"


def _in_words(reason: str, text: str) -> str:
    """Return why a text leads nowhere, from OmegaConf's reason."""
    if reason.startswith(("Interpolation key", "Unsupported")):
        return reason[:200]
    for pattern, words in _WORDS.items():
        if found := re.search(pattern, reason):
            return words.format(found[1])
    alone = re.fullmatch(r"[^$]*\$\{\.*([^${}:]+)\}[^$]*", text)
    if alone and re.search(r"Error (trying|resolving)|is not an int", reason):
        return f"Interpolation key '{alone[1]}' not found"
    _, raised, why = reason.rpartition(" raised while resolving interpolation: ")
    return f"what cannot be followed: {why[:200]}" if raised else reason[:200]


def value_at(values: Any, place: Key) -> Any:
    """Return the plain value at a place; None where there is nothing."""
    for key in place:
        if isinstance(values, dict) and key in values:
            values = values[key]
            continue
        inside = _entries(values) if isinstance(values, dict | list) else iter(())
        values = next((entry for name, entry in inside if str(name) == key), None)
    return values


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for _, entry in _entries(value):
            yield from _texts(entry)
    elif isinstance(value, str):
        yield value


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items() if isinstance(value, dict) else enumerate(value))
