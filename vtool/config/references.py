"""References `${key}` and `${resolver:…}`: what they lead to, each once, and within bounds.

The grammar is OmegaConf's. What it means is worked out here, since OmegaConf follows a reference
anew each time: thirty lines of `${a}${a}` end in 2³⁰ of them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf._utils import split_key
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar_parser import parse
from omegaconf.grammar_visitor import GrammarVisitor

from vtool.config.limits import DEEPEST, LONGEST_REFERENCE, MOST_FOLLOWED, MOST_LINKS
from vtool.config.origins import Key

_MARK = "\ud800{"
"""Stands for `${` while files are merged. No file and no argument has half a surrogate pair."""


def masked(value: Any) -> Any:
    """Return a value whose references are plain texts to OmegaConf, which follows none of them."""
    if isinstance(value, str):
        return value.replace("${", _MARK)
    if isinstance(value, dict):
        return {key: masked(entry) for key, entry in value.items()}
    return [masked(entry) for entry in value] if isinstance(value, list | tuple) else value


def unmasked(value: Any) -> Any:
    """Return a value with its references as they were before `masked` hid them."""
    if isinstance(value, str):
        return value.replace(_MARK, "${")
    if isinstance(value, dict):
        return {key: unmasked(entry) for key, entry in value.items()}
    return [unmasked(entry) for entry in value] if isinstance(value, list) else value


def is_masked(value: object) -> bool:
    """Return whether a value has a reference that `masked` hid."""
    return isinstance(value, str) and _MARK in value


class Unfollowed(str):
    """A text whose references were not followed, and still are references."""


@dataclass(frozen=True, slots=True)
class ResolvedValues:
    """A recipe's values, each reference replaced by what it leads to."""

    values: Any
    broken: Mapping[Key, str]
    """By place of a value that leads nowhere, and is None here, why."""
    unread: Mapping[Key, str]
    """By place of a value that an environment variable decides, and that is not read, its text."""

    def at(self, place: Key) -> Any:
        """Return the value at a place; None where there is none."""
        found = self.values
        for key in place:
            found = _inside(found, key)
        return None if found is _MISSING else found


def resolve_references(
    values: Mapping[str, Any], *, read_environment: bool = True
) -> ResolvedValues:
    """Follow all references of a recipe.

    Args:
        read_environment: False leaves texts that name an environment variable as they are.
    """
    state = _State(values, read_environment)
    resolved = state.value(())
    return ResolvedValues(resolved, state.broken, state.unread)


class _Broken(ValueError):
    """A reference that leads nowhere."""


class _Unread(Exception):
    """A reference to an environment variable, which is not read."""


class _Itself(Exception):
    """A reference that leads back to the text in which it began."""

    def __init__(self, place: Key) -> None:
        super().__init__(place)
        self.place = place


_MISSING = object()


@dataclass(slots=True)
class _State:
    """The values that are known so far."""

    raw: Any
    read_environment: bool
    done: dict[Key, Any] = field(default_factory=dict)
    active: dict[Key, bool] = field(default_factory=dict)
    """Places that are being worked out; True for a text with references."""
    broken: dict[Key, str] = field(default_factory=dict)
    unread: dict[Key, str] = field(default_factory=dict)
    spent: int = 0

    def value(self, place: Key) -> Any:
        """Return the value at a place, with its references followed."""
        if place in self.done:
            return self.done[place]
        if place in self.active:
            raise _Itself(place) if self.active[place] else _Broken(_ITSELF)
        raw = self.node(place)
        is_text = isinstance(raw, str) and "${" in raw
        self.active[place] = is_text
        try:
            if isinstance(raw, Mapping):
                value: Any = {key: self.value((*place, str(key))) for key in raw}
            elif isinstance(raw, list):
                value = [self.value((*place, str(number))) for number in range(len(raw))]
            else:
                value = self.text(raw, place) if is_text else raw
        finally:
            del self.active[place]
        self.done[place] = value
        return value

    def node(self, place: Key) -> Any:
        """Return the value at an existing place as it is written, references not followed."""
        found = self.raw
        for key in place:
            found = _inside(found, key)
        return found

    def text(self, text: str, place: Key) -> Any:
        """Return the value of a text with references; None where they lead nowhere."""
        try:
            if sum(self.active.values()) > MOST_LINKS:
                raise _Broken(f"more than {MOST_LINKS} references one after the other")
            return self.evaluated(text, place)
        except _Unread:
            self.unread[place] = text
            return Unfollowed(text)
        except _Itself as found:
            if found.place != place:
                raise
            self.broken[place] = _ITSELF
        except RecursionError:
            self.broken[place] = "too many references inside each other"
        except (_Broken, OmegaConfBaseException, ValueError, TypeError, KeyError) as error:
            self.broken[place] = str(error) if isinstance(error, _Broken) else _plain(error)
        return None

    def evaluated(self, text: str, place: Key, rule: str = "configValue") -> Any:
        """Return the value of a text by OmegaConf's grammar."""
        if len(text) > LONGEST_REFERENCE:
            raise _Broken(f"a text of {len(text)} characters; at most {LONGEST_REFERENCE} are read")
        mode = "DEFAULT_MODE" if rule == "configValue" else "VALUE_MODE"
        visitor = GrammarVisitor(
            node_interpolation_callback=lambda key, memo: self.reference(key, place),
            resolver_interpolation_callback=lambda name, args, args_str: self.call(
                name, args, place
            ),
            memo=None,
        )
        value = visitor.visit(parse(text, rule, mode))
        self.spend(value)
        return value

    def reference(self, key: str, place: Key, default: Any = _MISSING) -> Any:
        """Return the value that `${key}` in the text at a place leads to."""
        target = self.target(key, place)
        value = self.find(target) if target is not None else _MISSING
        if value is _MISSING or (isinstance(value, str) and value == "???"):
            if default is not _MISSING:
                return default
            if value is _MISSING:
                raise _Broken(f"Interpolation key '{key.lstrip('.')}' not found")
            raise _Broken(f"`{key}`, which is left open (???)")
        self.spend(value)
        return value

    def target(self, key: str, place: Key) -> Key | None:
        """Return the place that a key means; a dot at its beginning is the group of the text."""
        inner = key.lstrip(".")
        up = len(key) - len(inner)
        if up > len(place):
            return None
        around = place[: len(place) - up] if up else ()
        return (*around, *split_key(inner)) if inner else around

    def find(self, place: Key) -> Any:
        """Return the value at a place, by way of references in between."""
        found, plain = self.raw, False
        here: Key = ()
        for key in place:
            if not plain and isinstance(found, str) and "${" in found:
                found, plain = self.known(here), True
            found = _inside(found, key)
            here = (*here, key)
            if found is _MISSING:
                return _MISSING
        return found if plain else self.known(here)

    def known(self, place: Key) -> Any:
        """Return the value at a place, unless an environment variable decides it."""
        value = self.value(place)
        if any(each[: len(place)] == place for each in self.unread):
            raise _Unread
        return value

    def call(self, name: str, given: tuple[Any, ...], place: Key) -> Any:
        """Return the value that a resolver of OmegaConf's makes of its arguments."""
        if name == "oc.env" and not self.read_environment:
            raise _Unread
        if name not in _ARGUMENTS:
            raise _Broken(f"Unsupported interpolation type {name}")
        fewest, most = _ARGUMENTS[name]
        if not fewest <= len(given) <= most:
            raise _Broken(f"{name} with {len(given)} arguments")
        first = given[0]
        if name == "oc.create":
            return self.created(first, place)
        if name == "oc.decode":
            if first is None or isinstance(first, str):
                return first and self.evaluated(first, place, "singleElement")
            raise _Broken(f"oc.decode of `{first}`, which is no text")
        if not isinstance(first, str):
            raise _Broken(f"{name} of `{first}`, which is no text")
        if name == "oc.env":
            return _variable(first, *given[1:])
        if name == "oc.select":
            return self.reference(first, place, given[1] if len(given) > 1 else None)
        group = self.reference(first, place)
        if name == "oc.deprecated":
            return group
        if not isinstance(group, dict):
            raise _Broken(f"{name} of `{first}`, which is no group")
        return list(group if name == "oc.dict.keys" else group.values())

    def created(self, value: Any, place: Key) -> Any:
        """Return a value whose texts are followed as those of a file are."""
        if isinstance(value, dict):
            return {key: self.created(entry, place) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.created(entry, place) for entry in value]
        return self.evaluated(value, place) if isinstance(value, str) and "${" in value else value

    def spend(self, value: Any, depth: int = 0) -> None:
        """Count a value against `MOST_FOLLOWED`."""
        if depth > DEEPEST:
            raise _Broken(f"more than {DEEPEST} groups or lists inside each other")
        self.spent += 1 + (len(value) if isinstance(value, str) else 0)
        if self.spent > MOST_FOLLOWED:
            raise _Broken(
                f"more than {MOST_FOLLOWED} characters and values, with all references before it"
            )
        if isinstance(value, dict | list):
            for entry in value.values() if isinstance(value, dict) else value:
                self.spend(entry, depth + 1)


_ITSELF = "itself, at once or by way of others"
_ARGUMENTS = {
    "oc.env": (1, 2),
    "oc.decode": (1, 1),
    "oc.create": (1, 1),
    "oc.select": (1, 2),
    "oc.deprecated": (1, 2),
    "oc.dict.keys": (1, 1),
    "oc.dict.values": (1, 1),
}
"""Resolvers, and the fewest and the most arguments of each."""


def _inside(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        if key in value:
            return value[key]
        return next((entry for name, entry in value.items() if str(name) == key), _MISSING)
    if isinstance(value, list) and key.isdecimal() and len(key) < 9 and int(key) < len(value):
        return value[int(key)]
    return _MISSING


def _variable(name: str, default: Any = _MISSING) -> str | None:
    if (value := os.environ.get(name)) is not None:
        return value
    if default is _MISSING:
        raise _Broken(f"Environment variable '{name}' not found")
    return None if default is None else str(default)


def _plain(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
