"""A rule of settings: its text and its check."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Rule

Check = Callable[[Run, Origins], Iterator[Diagnostic]]


@dataclass(frozen=True, slots=True)
class SettingsRule:
    """A check of settings against each other, with the rule that its findings name."""

    rule: Rule
    check: Check
    """Yield findings; a pure function of the settings.

    It stops at a setting without a valid value, which raises `NotValid` where it is read.
    """
    unanswerable: Callable[[Run], str | None] = lambda run: None
    """Return why this machine cannot answer it for a run; None where it can."""


def settings_rule(
    rule: Rule,
    *,
    unanswerable: Callable[[Run], str | None] = lambda run: None,
) -> Callable[[Check], SettingsRule]:
    """Turn the check below into a `SettingsRule`, which `config/rules/__init__.py` lists."""
    return lambda check: SettingsRule(rule, check, unanswerable)
