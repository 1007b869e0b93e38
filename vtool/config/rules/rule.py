"""A rule of settings: its text, the groups of settings that it reads, and its check."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Rule

Check = Callable[[Run, Origins], Iterator[Diagnostic]]


@dataclass(frozen=True, slots=True)
class SettingsRule:
    """A check of settings against each other, with the rule that its findings name."""

    rule: Rule
    groups: tuple[str, ...]
    """Groups of settings that it reads. It does not run where the schema has a finding in one."""
    check: Check
    """Yield findings; a pure function of the settings."""
    unanswerable: Callable[[Run], str | None] = lambda run: None
    """Return why this machine cannot answer it for a run; None where it can."""

    def can_run(self, sound: Collection[str]) -> bool:
        """Return whether every group that it reads is among the sound ones."""
        return set(self.groups) <= set(sound)


def settings_rule(
    rule: Rule,
    *,
    groups: tuple[str, ...],
    unanswerable: Callable[[Run], str | None] = lambda run: None,
) -> Callable[[Check], SettingsRule]:
    """Turn the check below into a `SettingsRule`, which `config/rules/__init__.py` lists."""
    return lambda check: SettingsRule(rule, groups, check, unanswerable)
