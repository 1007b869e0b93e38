"""Findings about a file of a checkpoint folder."""

import re
from pathlib import Path
from typing import Any

from vtool.contents import stand_in
from vtool.diagnostics import Diagnostic, Origin

_LONG = re.compile(r"\S{400,}")
"""Names of others that would fill pages: an index may have one of 6,000 characters."""


def about_file(
    file: Path, rule: str, message: str, help: str | None = None, **more: Any
) -> Diagnostic:
    """Return a finding whose place is a file or folder; `more` are fields of `Diagnostic`."""
    for name in ("expected", "seen"):
        if more.get(name):
            more[name] = _LONG.sub(_ends, more[name])
    return Diagnostic(rule, _LONG.sub(_ends, message), help, origin=Origin(str(file)), **more)


def why_not_json(file: Path, error: ValueError) -> tuple[str, str | None]:
    """Return why a file is not JSON, and what to do where it is in the place of another one."""
    if found := stand_in(file):
        return f"it {found.what}", found.remedy
    return f"it is not JSON: {error}", None


def _ends(name: re.Match[str]) -> str:
    return f"{name[0][:100]}…{name[0][-40:]}"
