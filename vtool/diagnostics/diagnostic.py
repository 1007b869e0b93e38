"""A finding: its rule, its place, the expected and the observed value, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from vtool.diagnostics.printable import printable
from vtool.diagnostics.table import RULES

Severity = Literal["error", "warning", "note"]
_TEXTS = ("message", "help", "parameter", "expected", "seen")


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of a value: a file with a 1-based line and column, or the words `command line`."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = (printable(self.file), self.line, self.column)
        return ":".join(str(part) for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `rule` is a name of `RULES`, which gives its code and its usual severity.

    Its texts may quote what others have written: control characters are escaped in all of them.
    A message of several lines is made by `Lines`.
    """

    rule: str
    message: str
    help: str | None = None
    parameter: str | None = None
    origin: Origin | None = None
    expected: str | None = None
    seen: str | None = None
    severity: Severity | None = None
    tensors: tuple[str, ...] | None = None
    """Tensors of a checkpoint that it is about."""
    parameters: tuple[str, ...] | None = None
    """All parameters that it is about; `parameter` is the first, which is shown in full."""
    by_chance: bool = False
    """The parameters and tensors can be others at another run, as threads have it."""

    def __post_init__(self) -> None:
        assert self.rule in RULES, f"no rule named {self.rule}"
        if self.severity is None:
            object.__setattr__(self, "severity", RULES[self.rule].severity)
        for name in _TEXTS:
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, printable(text))
        for name in ("tensors", "parameters"):
            if (names := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(map(printable, names)))

    @property
    def code(self) -> str:
        """The rule's code, such as VT301."""
        return RULES[self.rule].code

    @property
    def remedy(self) -> str:
        """The finding's help, or the rule's."""
        return self.help or f"{RULES[self.rule].fix} (vtool explain {self.rule})"


class Findings(ValueError):
    """An error with all findings that stop a command.

    Raised by library code for anything a user can put right. The commands print the findings and
    exit 1, or exit 2 where `fatal` says that nothing at all could be checked.
    """

    def __init__(
        self, diagnostics: Iterable[Diagnostic] | Diagnostic, *, fatal: bool = False
    ) -> None:
        self.diagnostics = (
            (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        )
        self.fatal = fatal
        super().__init__("; ".join(map(_in_one_line, self.diagnostics)))

    def __reduce__(self) -> tuple[object, ...]:
        return _findings, (type(self), self.diagnostics, self.fatal)


def _in_one_line(one: Diagnostic) -> str:
    """Return a finding with its help, as the last line of a notebook's traceback shows it."""
    text = f"{one.rule} ({one.code}): {one.message}"
    return f"{text}; help: {one.help}" if one.help else text


def _findings(kind: type[Findings], diagnostics: tuple[Diagnostic, ...], fatal: bool) -> Findings:
    """Rebuild `Findings` in another process (it crosses ranks and data workers)."""
    return kind(diagnostics, fatal=fatal)
