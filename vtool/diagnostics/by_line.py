"""Findings by source line: what one rule says of one line is one finding, whoever shares it.

Thirty-six classes that call the same eighteen lines have eighteen defects, not thirty-six.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from vtool.diagnostics.diagnostic import Diagnostic, Severity
from vtool.diagnostics.result import Result
from vtool.words import plural

KNOWN_SUFFIX = " (known: in the baseline)"
"""The end of a message about a finding that a baseline knows."""
_GRAVITY: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class SubjectFinding:
    """One subject's finding, as a part of what was found at a line."""

    subject: str
    finding: Diagnostic
    result: int
    """The place of the subject among the results, from 0."""
    place: int
    """The place of the finding among the subject's own, from 0."""

    @property
    def text(self) -> str:
        """The message without the subject's name before it."""
        return self.finding.message.removeprefix(f"{self.subject}: ")


@dataclass(frozen=True, slots=True)
class LineFinding:
    """All findings of one rule at one line, the gravest first; of those without a line, one."""

    members: tuple[SubjectFinding, ...]

    @property
    def first(self) -> Diagnostic:
        """The gravest finding."""
        return self.members[0].finding

    @property
    def severity(self) -> Severity:
        """The gravest of its members: what is known of one class may be new of another."""
        return self.first.severity or "error"

    @property
    def subjects(self) -> tuple[str, ...]:
        """The names of what was checked, each once."""
        return tuple(dict.fromkeys(member.subject for member in self.members))

    @property
    def merged(self) -> Diagnostic:
        """The first finding, saying of how many subjects and findings more it is true."""
        more = _more(len(self.subjects) - 1, len(self.members) - 1)
        if not more:
            return self.first
        findings = [member.finding for member in self.members]
        return replace(
            self.first,
            message=f"{self.first.message}; likewise {more}",
            parameters=_joined([_parameters(one) for one in findings]),
            tensors=_joined([one.tensors or () for one in findings]),
        )

    @property
    def names(self) -> list[str]:
        """A line for each subject of several, with its message where that differs from the first.

        Of one subject, a line for each of its findings.
        """
        if len(self.members) == 1:
            return []
        several = len(self.subjects) > 1
        other = self.members[0].text
        lines = []
        for member in self.members:
            grade = member.finding.severity or "error"
            mild = f" ({grade})" if grade != self.severity else ""
            words = [member.subject] if several else []
            if not several or in_other_words(member.text, other):
                words.append(member.text)
            lines.append(": ".join(words) + mild)
        return list(dict.fromkeys(lines))


def by_line(results: Sequence[Result]) -> list[LineFinding]:
    """Return the findings of all subjects, joined where rule, file and line are the same.

    They are in the order in which the first of each comes. A finding without a line stays alone.
    """
    groups: dict[object, list[SubjectFinding]] = {}
    for number, result in enumerate(results):
        for place, finding in enumerate(result.findings):
            origin = finding.origin
            key: object = (number, place)
            if origin is not None and origin.line is not None:
                key = (finding.rule, origin)
            groups.setdefault(key, []).append(
                SubjectFinding(result.subject, finding, number, place)
            )
    return [
        LineFinding(tuple(sorted(members, key=lambda one: _gravity(one.finding))))
        for members in groups.values()
    ]


def count_lines(lines: Sequence[LineFinding]) -> dict[str, int]:
    """Count findings by severity, each line once: `errors`, `warnings`, `notes`."""
    severities = [line.severity for line in lines]
    return {f"{severity}s": severities.count(severity) for severity in _GRAVITY}


def in_other_words(text: str, other: str) -> bool:
    """Return True if two messages differ in more than numbers and the names that they list."""
    return _kind(text) != _kind(other) or text.endswith(KNOWN_SUFFIX) != other.endswith(
        KNOWN_SUFFIX
    )


def _kind(text: str) -> str:
    return re.sub(r"\d+", "#", text.partition(": ")[0])


def _gravity(finding: Diagnostic) -> int:
    return _GRAVITY.index(finding.severity or "error")


def _parameters(finding: Diagnostic) -> tuple[str, ...]:
    return finding.parameters or ((finding.parameter,) if finding.parameter else ())


def _joined(names: Sequence[Sequence[str]]) -> tuple[str, ...] | None:
    return tuple(dict.fromkeys(chain.from_iterable(names))) or None


def _more(subjects: int, findings: int) -> str:
    """Return `3 more subjects`, or of one subject `2 more findings`; nothing where it is alone."""
    if subjects:
        return plural(subjects, "more subject")
    return plural(findings, "more finding") if findings else ""
