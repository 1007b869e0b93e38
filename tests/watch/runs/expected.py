"""A run with a mistake, and the rule that must find it."""

from dataclasses import dataclass

from tests.watch.runs.loop import Recipe


@dataclass(frozen=True)
class Planted:
    rule: str
    severity: str
    recipe: Recipe
    also: tuple[str, ...] = ()
    """Errors that follow from the mistake too."""


def error(rule: str, **settings: object) -> Planted:
    return Planted(rule, "error", Recipe(**settings))  # type: ignore[arg-type]


def warning(rule: str, **settings: object) -> Planted:
    return Planted(rule, "warning", Recipe(**settings))  # type: ignore[arg-type]


def note(rule: str, **settings: object) -> Planted:
    return Planted(rule, "note", Recipe(**settings))  # type: ignore[arg-type]
