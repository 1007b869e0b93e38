"""A file of another trainer's settings, and what becomes of it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vtool.config.compose import Composed
from vtool.config.foreign.verl_settings import SameSetting
from vtool.config.foreign.word import NO_COUNTERPART
from vtool.config.origins import Key, ValuePosition
from vtool.diagnostics import Diagnostic

LEFT_OPEN = "???"
"""The value of a setting that the user must give: their recipe names what is not here."""


@dataclass(frozen=True, slots=True)
class ForeignRecipe:
    """A recipe of another trainer's after translation into settings of ours."""

    composed: Composed
    findings: tuple[Diagnostic, ...]
    """Findings about their settings."""
    names: Mapping[str, str]
    """By our setting, the name of theirs."""
    left: tuple[tuple[str, Any], ...] = ()
    """Their settings that have no counterpart here, with their values."""
    notes: tuple[str, ...] = ()
    """Sentences about the recipe that they become."""
    scales: Mapping[str, int] = field(default_factory=dict)
    """By our setting, how many of its units one of theirs is."""
    refused: Mapping[str, Any] = field(default_factory=dict)
    """Their settings with values that the trainer refuses: nothing is made of them."""

    @property
    def open(self) -> tuple[str, ...]:
        """The settings of ours that are left to the user, since they name what is not here."""
        return tuple(
            f"{group}.{name}"
            for group, inner in self.composed.values.items()
            if isinstance(inner, Mapping)
            for name, value in inner.items()
            if value == LEFT_OPEN
        )


@dataclass(slots=True)
class ForeignFile:
    """A file of another trainer's, and the settings that were made of it."""

    given: Mapping[str, Any]
    """By dotted name: every value, and the two groups that go through as they are."""
    places: Mapping[str, ValuePosition]
    folder: Path = field(default_factory=Path)
    """The folder that it is in."""
    refused: Mapping[str, Any] = field(default_factory=dict)
    """Settings whose values the trainer refuses, with these; they are None in `given`."""
    values: dict[str, Any] = field(default_factory=dict)
    """Ours, nested."""
    origins: dict[Key, ValuePosition] = field(default_factory=dict)
    judged: set[str] = field(default_factory=set)
    absent: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By their setting: why what it names is not on this machine, and what to do."""
    names: dict[str, str] = field(default_factory=dict)
    """By our setting, the name of theirs."""
    scales: dict[str, int] = field(default_factory=dict)
    """By our setting, how many of its units one of theirs is."""
    found: list[Diagnostic] = field(default_factory=list)
    """Findings made on the way."""

    def find_path(self, text: str) -> Path | None:
        """Return where a file or folder is that they name; None where it is not here.

        It is relative to the folder where the trainer is started, which is this one, or one above
        the recipe.
        """
        path = Path(text).expanduser()
        if not text or path.is_absolute():
            return path if text and path.exists() else None
        above = self.folder.resolve()
        near = (Path(), above, *above.parents[:4])
        return next((one / path for one in near if (one / path).exists()), None)

    def take(self, name: str, default: Any = None) -> Any:
        """Return the value of one of their settings, and count the setting as looked at."""
        self.judged.add(name)
        value = self.given.get(name)
        return default if value is None and name not in self.refused else value

    def put(self, ours: str, value: Any, theirs: str) -> None:
        """Set one of our settings, at the place where theirs stands, unless that is refused."""
        if theirs in self.refused:
            return
        *groups, last = keys = ours.split(".")
        group = self.values
        for key in groups:
            group = group.setdefault(key, {})
        group[last] = value
        self.names[ours] = theirs
        self.judged |= set() if value == LEFT_OPEN else {theirs}
        if place := self.places.get(theirs):
            for end in range(1, len(keys)):
                self.origins.setdefault(tuple(keys[:end]), replace(place, holds="mapping"))
            self.origins[tuple(keys)] = place
            if isinstance(value, list):
                self.origins |= {(*keys, str(number)): place for number in range(len(value))}
                self.origins |= {
                    (*keys, str(number), "path"): place for number in range(len(value))
                }
                self.names |= {f"{ours}.{number}.path": theirs for number in range(len(value))}

    def map(self, table: Iterable[SameSetting]) -> None:
        """Set ours from theirs for each setting of a table that means the same in both."""
        for same in table:
            value = self.take(same.theirs, same.default)
            ours = None if value is None else same.convert(value)
            if ours is NO_COUNTERPART:
                self.judged.discard(same.theirs)
            elif ours is not None:
                self.put(same.ours, ours, same.theirs)

    def find(self, rule: str, name: str, message: str, help: str | None) -> Diagnostic:
        """Return a finding about one of their settings, at its place, which judges the setting."""
        self.judged.add(name)
        place = self.places.get(name)
        return Diagnostic(rule, message, help, name, place.value if place else None)


def absent_findings(theirs: ForeignFile) -> Iterator[Diagnostic]:
    """Yield findings made on the way, and a note on all that is not on this machine."""
    yield from theirs.found
    for name, (why, help) in theirs.absent.items():
        message = f"{name}: {why}; what depends on it is not checked"
        place = theirs.places.get(name)
        origin = place.value if place else None
        yield Diagnostic("not-on-this-machine", message, help, name, origin)


def listed_words(value: Any) -> list[str]:
    """Return a list, or text with commas, as a list."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return [part.strip() for part in str(value).split(",") if part.strip()]
