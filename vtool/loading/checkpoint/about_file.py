"""Findings about a file of a checkpoint folder."""

from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic, Origin


def about_file(
    file: Path, rule: str, message: str, help: str | None = None, **more: Any
) -> Diagnostic:
    """Return a finding whose place is a file or folder; `more` are fields of `Diagnostic`."""
    return Diagnostic(rule, message, help, origin=Origin(str(file)), **more)
