"""The outcome of one row of the first hour: its state, numbers and reason."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row's state, its figure in words, and its numbers."""

    state: str
    """`passed`, `failed`, or `not run`."""
    figure: str
    numbers: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the outcome as plain values, for JSON."""
        return asdict(self)

    def write(self, file: Path) -> None:
        """Write it whole, or not at all."""
        partial = file.with_suffix(".part")
        partial.write_text(json.dumps(self.plain(), ensure_ascii=False), "utf-8")
        partial.replace(file)

    @classmethod
    def read(cls, file: Path) -> "Outcome | None":
        """Read the outcome in a file; None where none was written."""
        with suppress(OSError, ValueError):
            return cls(**json.loads(file.read_text("utf-8")))
        return None


def judged(passed: bool, figure: str, **numbers: Any) -> Outcome:
    """Return the outcome of a check that has looked."""
    return Outcome("passed" if passed else "failed", figure, numbers)
