"""Printing of results: `full` to read, `concise` a line each, `json`, `sarif`, `github`."""

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from vtool.diagnostics.by_line import LineFinding, by_line, count_lines
from vtool.diagnostics.diagnostic import Diagnostic, Origin
from vtool.diagnostics.github import annotation
from vtool.diagnostics.printable import printable, printable_all
from vtool.diagnostics.result import Result, count
from vtool.version import __version__

_LONGEST_LINE = 2**20  # characters in memory at once
_MOST_MISSED, _FEW_MISSED = 12, 6
"""Rules that were not run, up to which all are named; and those that are named of more."""
_COLORS = {"error": "31;1", "warning": "33;1", "note": "36;1"}
Locate = Callable[[str], Path]
MACHINE = frozenset({"json", "sarif"})
"""Formats that are one document: nothing else may be on their stream."""
BY_LINE = frozenset({"load-check"})
"""Commands whose subjects share lines of code: what is found at one line is reported once."""


def render_results(
    results: Sequence[Result],
    format: str,
    *,
    command: str,
    stream: TextIO,
    locate: Locate = Path,
    options: Sequence[str] = (),
    already_reported: Collection[Diagnostic] = (),
    notes: bool = True,
) -> None:
    """Write results to a stream.

    Args:
        notes: False counts the notes of a command of `BY_LINE`, and prints none of them; documents
            have them all the same.
        already_reported: findings that the command itself has printed: `full` leaves them out.
        format: `full`, `concise`, `github`, or, with nothing else on the stream, `json` or `sarif`.
        options: what the command was given besides its subjects.
        locate: where the file is that an origin names, for the line that `full` shows.
    """
    if format in MACHINE:
        document = (
            as_json(results, command, options) if format == "json" else _as_sarif(results, command)
        )
        stream.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        return
    color = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    explained: set[str] = set()  # rules whose remedy has been printed: once is enough

    def show(finding: Diagnostic, names: Sequence[str] = ()) -> None:
        if format == "full":
            stream.write("\n".join(_full(finding, names, color, locate, explained)) + "\n\n")
        else:
            stream.write((annotation if format == "github" else _concise)(finding, names) + "\n")

    if command in BY_LINE:
        for line in by_line(results):
            if notes or line.severity != "note":
                show(line.merged, line.names)
    shown: set[Diagnostic] = set()  # the runs of a sweep have a mistake in common
    for result in results:
        for finding in result.findings if command not in BY_LINE else ():
            if finding not in shown and (format != "full" or finding not in already_reported):
                show(finding)
        shown.update(result.findings)
        if format == "full" and result.verdict != "not-run":
            whose = f"{result.subject}: " if len(results) > 1 else ""
            stream.writelines(f"{whose}{line}\n" for line in _missed(result))
    stream.write(summary(results, command) + "\n")


def summary(results: Sequence[Result], command: str = "") -> str:
    """Return the last line: the counts of findings, and of checks by how they ended.

    Of a command of `BY_LINE`, a line of code counts once, and so does one finding of several
    subjects; behind it is said how often subjects have it.
    """
    counts = count(results)
    counted = counts | (
        count_lines(by_line(results)) if command in BY_LINE else _count_distinct(results)
    )
    found = [
        f"{counted[name]} {name if counted[name] != 1 else name[:-1]}"
        + (f" ({counts[name]} by subject)" if counts[name] != counted[name] else "")
        for name in ("errors", "warnings", "notes")
        if counts[name] or counted[name]
    ]
    states = [
        f"{counts[state]} {state.replace('_', ' ')}"
        for state in ("passed", "failed", "not_run")
        if counts[state]
    ]
    subject = f"{results[0].subject}: " if len(results) == 1 and results[0].subject else ""
    ended = next((s for one in results if (s := one.details.get("command", {}).get("status"))), 0)
    return (
        subject
        + (f"the command ended with status {ended}; " if ended else "")
        + (", ".join(found) or "no findings")
        + (f"; checks: {', '.join(states)}" if states else "")
    )


def _count_distinct(results: Sequence[Result]) -> dict[str, int]:
    """Return the counts of findings, of which one that several results have counts once.

    Equal findings of one result are several: two rows may break in the same words.
    """
    most: Counter[Diagnostic] = Counter()
    for result in results:
        most |= Counter(result.findings)
    counts = Counter(f"{finding.severity}s" for finding in most.elements())
    return {name: counts[name] for name in ("errors", "warnings", "notes")}


def as_json(results: Sequence[Result], command: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """Return the one JSON layout of every checking command. Keys without a value are left out."""
    document: dict[str, Any] = {
        "version": 1,
        "tool": {
            "name": "vtool",
            "version": __version__,
            "command": command,
            **({"options": list(options)} if options else {}),
        },
        "results": [
            {
                "subject": result.subject,
                "verdict": result.verdict,
                "checks": dict(result.checks),
                **({"details": dict(result.details)} if result.details else {}),
                "findings": [_finding_json(finding) for finding in result.findings],
            }
            for result in results
        ],
        "summary": count(results),
    }
    if command in BY_LINE:
        lines = by_line(results)
        document["by_line"] = [_line_json(line) for line in lines]
        document["summary"] |= {"by_line": count_lines(lines)}
    # also what was measured, and what the command was given
    return {key: printable_all(value) for key, value in document.items()}


def _as_sarif(results: Sequence[Result], command: str) -> dict[str, Any]:
    # imports hashlib and more, which start-up need not wait for
    from vtool.diagnostics.sarif import as_sarif

    return as_sarif(results, command)


def _line_json(line: LineFinding) -> dict[str, Any]:
    """Return a finding of `by_line`: with its subjects, and where each is among the results."""
    # imports hashlib and more, which start-up need not wait for
    from vtool.diagnostics.baseline import fingerprint

    return {
        **_finding_json(line.merged),
        "subjects": line.subjects,
        "findings": [
            {
                "result": member.result,
                "finding": member.place,
                "fingerprint": fingerprint(member.subject, member.finding),
            }
            for member in line.members
        ],
    }


def _finding_json(finding: Diagnostic) -> dict[str, Any]:
    origin = finding.origin and asdict(finding.origin)
    names = (
        "code",
        "rule",
        "severity",
        "message",
        "help",
        "parameter",
        "parameters",
        "tensors",
        "expected",
        "seen",
    )
    fields = {name: getattr(finding, name) for name in names}
    fields["origin"] = origin and {key: value for key, value in origin.items() if value is not None}
    return {key: value for key, value in fields.items() if value is not None}


def _missed(result: Result) -> Iterator[str]:
    """Yield the rules that were not run, with the reason."""
    missed: dict[str, list[str]] = {}
    for rule, state in result.checks.items():
        if state == "not-run":
            missed.setdefault(result.details.get(rule, {}).get("reason", ""), []).append(rule)
    for reason, rules in missed.items():
        yield (
            f"not run: {', '.join(rules)} ({printable(reason)})"
            if reason
            else f"not run, because of the above: {_few(rules)}"
        )


def _few(rules: Sequence[str]) -> str:
    """Return names of rules; of many, the first ones: a finding that stops all is what is read."""
    if len(rules) <= _MOST_MISSED:
        return ", ".join(rules)
    first = ", ".join(rules[:_FEW_MISSED])
    return f"{first} and {len(rules) - _FEW_MISSED} more, which --format json names"


def _concise(finding: Diagnostic, names: Sequence[str] = ()) -> str:
    place = f"{finding.origin}: " if finding.origin else ""
    message = " ".join(finding.message.split())
    named, _, rest = message.partition(": ")
    # a row's message begins with the row, which is its place
    if rest and place.endswith(f"{named}: "):
        message = rest
    under = f" ({'; '.join(names[1:])})" if names else ""
    return f"{place}{finding.severity} {finding.rule} ({finding.code}): {message}{under}"


def _full(
    finding: Diagnostic, names: Sequence[str], color: bool, locate: Locate, explained: set[str]
) -> list[str]:
    head = f"{finding.severity}[{finding.rule} {finding.code}]"
    painted = f"\x1b[{_COLORS[finding.severity or 'error']}m{head}\x1b[0m" if color else head
    lines = [f"{painted}: {finding.message}"]
    if finding.origin:
        lines += [f"  --> {finding.origin}", *_excerpt(finding.origin, locate)]
    lines += [f"  - {name}" for name in names]
    if finding.help:
        lines.append(f"  help: {finding.help}")
    elif finding.rule not in explained:
        explained.add(finding.rule)
        lines.append(f"  help: {finding.remedy}")
    return lines


def _line(file: TextIO, wanted: int) -> str:
    """Return a line of a file, from 1; of one that is very long, the beginning."""
    number = 1
    while part := file.readline(_LONGEST_LINE):
        if number == wanted:
            return part
        number += part.endswith("\n")
    return ""


def _excerpt(origin: Origin, locate: Locate) -> Iterator[str]:
    """Yield the line that an origin names, with a caret under the column."""
    if origin.line is None:
        return
    try:
        with locate(origin.file).open(encoding="utf-8") as file:
            line = _line(file, origin.line).rstrip("\n").replace("\t", " ")
        line = "".join(letter if letter.isprintable() else "\ufffd" for letter in line)
    except (OSError, UnicodeDecodeError):
        return
    start = max(0, (origin.column or 1) - 60)  # a row of a rows file can be a page long
    shown = line[start : start + 120]
    gutter = f"{origin.line:>5} | "
    yield f"{gutter}{'…' if start else ''}{shown}{'…' if len(line) > start + 120 else ''}"
    if origin.column is not None:
        yield " " * (len(gutter) + origin.column - 1 - start + (1 if start else 0)) + "^"
