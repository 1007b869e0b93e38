"""What a cross-field rule is."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class CrossField:
    """A check over several settings."""

    name: str
    """Of the table of rules."""
    groups: tuple[str, ...]
    """The groups of settings that it looks at:

    it is not run where the schema has a finding in one of them.
    """
    check: Callable[[Run, Origins], Iterator[Diagnostic]]
    misses: Callable[[Run], str | None] = lambda run: None
    """Why it cannot be asked of a run here; None where it can."""

    def can_run(self, groups: Collection[str]) -> bool:
        """Whether all that it looks at is sound."""
        return set(self.groups) <= set(groups)
