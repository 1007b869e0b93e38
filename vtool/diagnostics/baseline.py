"""A baseline: the findings of one day, so that later only new ones count."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vtool.contents import read_small_json
from vtool.diagnostics.by_line import KNOWN_SUFFIX
from vtool.diagnostics.diagnostic import Diagnostic, Findings, Origin
from vtool.diagnostics.places import file_of
from vtool.diagnostics.result import Result

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", re.IGNORECASE)
_NOTHING_CHECKED = ("unknown-subject", "unusable-interpreter", "load-failed")
"""Rules that say that something was not checked, which can be known and is still not checked."""
_JUDGED = ("clean", "warnings", "incomplete", "unsafe")
_INSTALLED = re.compile(r"\S*/site-packages/")


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """Results, after a baseline was recorded or compared with them."""

    results: tuple[Result, ...]
    """With what the baseline knows turned into notes.

    Verdicts and checks are as they were: known is not harmless.
    """
    recorded: bool
    """The baseline was not there, and holds these findings now."""
    known: int
    """The number of findings in the baseline, now."""
    gone: tuple[str, ...]
    """Entries of these subjects whose check ran again and no longer finds them."""

    def lines(self, file: Path) -> list[str]:
        """Return the lines that are printed about the baseline, in addition to the findings."""
        findings = f"{self.known} finding{'' if self.known == 1 else 's'}"
        if self.recorded:
            return [f"baseline: {findings} recorded in {file}; from now on only others count"]
        messages = [f"baseline: {findings} known from {file}, and not counted"]
        messages += [f"baseline: gone: {one}" for one in self.gone]
        return messages + (
            ["to forget what is gone, delete the file and record it again"] if self.gone else []
        )


def compare_with_baseline(results: Sequence[Result], file: Path) -> BaselineComparison:
    """Record the errors and warnings of these results, or find those that the file knows.

    They are recorded where there is no such file. A finding is known by its subject, rule, file and
    all of its parameters, in any order; one without any by its tensors and its message, without
    line numbers or any other number in the message. Of findings that are alike in all of that, as
    many are known as were recorded; what threads find by chance is known by subject and rule, in
    any number, and never gone. What was not checked is neither recorded nor known.

    Raises:
        Findings: `unusable-baseline`, for a file that is no baseline or cannot be written.
    """
    if not file.exists():
        entries = [
            _entry(result.subject, finding)
            for result in results
            for finding in result.findings
            if _counts(result, finding)
        ]
        _write(file, entries)
        left = Counter(map(_key, entries))
        marked, _ = _mark(results, left.copy())
        return BaselineComparison(marked, True, len(entries), ())
    entries = _read(file)
    marked, left = _mark(results, Counter(map(_key, entries)))
    asked = {
        (result.subject, rule)
        for result in results
        if result.verdict in _JUDGED
        for rule, state in result.checks.items()
        if state in ("passed", "failed")
    }
    gone = []
    for entry in entries:
        looked = (entry["subject"], entry["rule"]) in asked and not entry.get("by_chance")
        if looked and left[_key(entry)]:
            left[_key(entry)] -= 1
            gone.append(f"{entry['subject']}: {entry['rule']}: {entry['message']}")
    known = sum(
        1 for one in marked for finding in one.findings if finding.message.endswith(KNOWN_SUFFIX)
    )
    return BaselineComparison(marked, False, known, tuple(gone))


def fingerprint(subject: str, finding: Diagnostic) -> str:
    """Return 128 bits, in hexadecimal, that are the same as long as a baseline knows the finding.

    They stay while lines move, numbers change, and threads find things in another order.
    """
    return _digest(_key(_entry(subject, finding)))


def worded_fingerprint(subject: str, finding: Diagnostic) -> str:
    """Return 128 bits, in hexadecimal, of the finding's words too, as the first version had them.

    Results that were uploaded as SARIF are known by them.
    """
    return _digest(_worded_key(_entry(subject, finding)))


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _mark(results: Sequence[Result], left: Counter[str]) -> tuple[tuple[Result, ...], Counter[str]]:
    marked = []
    for result in results:
        findings = []
        for finding in result.findings:
            entry = _entry(result.subject, finding)
            # an older file has the words of each finding, and not its parameters
            keys = (_key(entry), _key(_worded(entry)), _chance_key(entry))
            key = next((one for one in keys if left[one]), None)
            if key is None or not _counts(result, finding):
                findings.append(finding)
                continue
            left[key] -= key != _chance_key(entry)
            findings.append(
                replace(finding, severity="note", message=finding.message + KNOWN_SUFFIX)
            )
        marked.append(replace(result, findings=tuple(findings)))
    return tuple(marked), left


def _counts(result: Result, finding: Diagnostic) -> bool:
    """Return whether a finding comes from a check that ran."""
    return (
        finding.severity != "note" and _was_judged(result) and finding.rule not in _NOTHING_CHECKED
    )


def _was_judged(result: Result) -> bool:
    """Return True for a verdict, and for a folder of which only the files were checked."""
    files_alone = result.verdict == "not-run" and "passed" in result.checks.values()
    return result.verdict in _JUDGED or files_alone


def _entry(subject: str, finding: Diagnostic) -> dict[str, Any]:
    """Return a finding as the file holds it: enough for people to read, without its line."""
    fields = {
        "subject": subject,
        "rule": finding.rule,
        "parameter": finding.parameter,
        "parameters": list(finding.parameters) if finding.parameters else None,
        "tensors": list(finding.tensors) if finding.tensors else None,
        "file": _file(finding.origin),
        "message": finding.message,
        "by_chance": finding.by_chance or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _file(origin: Origin | None) -> str | None:
    """Return a file's path in the working folder or in site-packages, or its name.

    It is the same in another checkout and another environment.
    """
    file = file_of(origin)
    if file is None or not os.path.isabs(file):
        return file
    installed = _INSTALLED.sub("", file)
    return os.path.basename(file) if installed == file else installed


def _key(entry: Mapping[str, Any]) -> str:
    """Return a finding's key, as text: its parameters, where it has any.

    What a message counts and lists of them may come in another order.
    """
    if entry.get("by_chance"):
        return _chance_key(entry)
    if entry.get("parameters"):
        kept = {name: entry.get(name) for name in ("subject", "rule", "file")}
        return json.dumps(kept | {"parameters": sorted(entry["parameters"])}, sort_keys=True)
    tensors = {"tensors": sorted(entry["tensors"])} if entry.get("tensors") else {}
    return _worded_key({**entry, **tensors})


def _chance_key(entry: Mapping[str, Any]) -> str:
    return json.dumps(["by chance", entry["subject"], entry["rule"]])


def _worded_key(entry: Mapping[str, Any]) -> str:
    message = _NUMBER.sub("#", _INSTALLED.sub("", entry["message"]))
    return json.dumps(_worded(entry) | {"message": message}, sort_keys=True)


def _worded(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry as older files have it."""
    return {name: value for name, value in entry.items() if name not in ("parameters", "by_chance")}


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        content = read_small_json(file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not JSON: {error}"
        raise Findings(
            Diagnostic(
                "unusable-baseline", f"{file} cannot be read: {why}", origin=Origin(str(file))
            ),
            fatal=True,
        ) from error
    entries = (
        content.get("findings")
        if isinstance(content, dict) and content.get("version") == 1
        else None
    )
    fields = ("subject", "rule", "message")
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict)
        and all(isinstance(entry.get(name), str) for name in fields)
        and all(_is_names(entry.get(name, [])) for name in ("parameters", "tensors"))
        for entry in entries
    ):
        raise Findings(
            Diagnostic(
                "unusable-baseline", f"{file} is not a baseline of vtool", origin=Origin(str(file))
            ),
            fatal=True,
        )
    return entries


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _write(file: Path, entries: list[dict[str, Any]]) -> None:
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        document = {
            "version": 1,
            "findings": sorted(
                entries, key=lambda entry: [entry["subject"], entry["rule"], json.dumps(entry)]
            ),
        }
        unfinished.write_text(
            json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        unfinished.replace(file)
    except OSError as error:
        raise Findings(
            Diagnostic("unusable-baseline", f"{file} cannot be written: {error.strerror}"),
            fatal=True,
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
