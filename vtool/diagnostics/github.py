"""Findings as GitHub's workflow commands, which become annotations of a pull request.

Source: docs.github.com, "Workflow commands for GitHub Actions"; the escapes are those of
`@actions/core` (packages/core/src/command.ts).
"""

from collections.abc import Sequence

from vtool.diagnostics.diagnostic import Diagnostic
from vtool.diagnostics.places import file_of
from vtool.diagnostics.printable import printable

_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def annotation(finding: Diagnostic, names: Sequence[str] = ()) -> str:
    """Return a finding as one line, with line breaks and colons escaped.

    Args:
        names: lines below its message: the subjects that it is about.
    """
    origin = finding.origin
    file = file_of(origin)
    properties = {
        "file": file and printable(file),
        "line": origin and origin.line,
        "col": origin and origin.column,
        "title": f"{finding.rule} ({finding.code})",
    }
    given = ",".join(
        f"{name}={_property(str(value))}" for name, value in properties.items() if value is not None
    )
    message = "\n- ".join([finding.message, *names])
    message += f"\nhelp: {finding.help}" if finding.help else ""
    return f"::{_LEVELS[finding.severity or 'error']} {given}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
