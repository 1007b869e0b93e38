"""What `vtool load-check` prints beside its findings:

progress, the table of many subjects, what was not run.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtool.diagnostics.result import Result

if TYPE_CHECKING:
    from vtool.config.schema import LoadCheck
    from vtool.loading.check import Progress
    from vtool.loading.probe.facts import Ready

SHOWN = 4


class Live:
    """Progress on standard error:

    one line that changes, on a terminal; else a line for each subject.
    """

    def __init__(self, stream: Any, *, enabled: bool) -> None:
        self.stream, self.enabled = stream, enabled
        self.wide = stream.isatty()
        self.counts: dict[str, int] = {}

    def ready(self, event: "Ready") -> None:
        """Print that the framework is imported."""
        if self.enabled:
            self.stream.write(
                f"{event.name} {event.version}, torch {event.torch}, imported in"
                f" {event.seconds:.1f} s: {len(event.subjects)} classes\n"
            )

    def show(self, progress: "Progress") -> None:
        """One more subject has its result."""
        if not self.enabled:
            return
        verdict = progress.result.verdict
        self.counts[verdict] = self.counts.get(verdict, 0) + 1
        seconds = progress.seconds
        line = f"{progress.done}/{progress.of} {progress.result.subject}: {verdict}" + (
            f", {seconds:.1f} s" if seconds is not None else ""
        )
        if self.wide:
            counts = ", ".join(f"{count} {word}" for word, count in self.counts.items())
            self.stream.write(f"\r\x1b[K{self._cut(f'{line} ({counts})')}")
        else:
            self.stream.write(f"{line}\n")
        self.stream.flush()

    def _cut(self, line: str) -> str:
        """No wider than the terminal: what wraps cannot be taken back."""
        # a terminal that does not know its width says 0
        most = (os.get_terminal_size(self.stream.fileno()).columns or 80) - 1
        return line if len(line) <= most else line[: most - 1] + "…"

    def end(self) -> None:
        """Leave the terminal's line."""
        if self.enabled and self.wide:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


def table(results: Sequence[Result]) -> str:
    """For each check, how many subjects passed it, failed it, or were not asked;

    then every subject that was not judged.
    """
    rules = list(dict.fromkeys(rule for result in results for rule in result.checks))
    width = max((len(rule) for rule in rules), default=0)
    lines = [f"{'check':<{width}}  passed  failed  not run"]
    for rule in rules:
        states = [result.checks.get(rule) for result in results]
        lines.append(
            f"{rule:<{width}}  {states.count('passed'):>6}  {states.count('failed'):>6} "
            f" {states.count('not-run'):>7}"
        )
    verdicts = [result.verdict for result in results]
    lines.append("")
    lines.append(
        ", ".join(
            f"{verdicts.count(word)} {word}"
            for word in ("clean", "unsafe", "failed", "not-run")
            if word in verdicts
        )
    )
    if changed := sum(bool(_changed(result)) for result in results):
        lines.append(
            f"{changed} with parts replaced or fields guessed, which json and the page name"
        )
    lines += [
        f"  not run: {result.subject}: {_reason(result)}"
        for result in results
        if result.verdict == "not-run"
    ]
    return "\n".join(lines) + "\n\n"


def made_of(results: Sequence[Result]) -> Iterator[str]:
    """For each subject, a line:

    the folder of a recipe; the class, and with whose tensors; what of it was replaced or guessed.
    """
    for result in results:
        made = result.details.get("subject", {})
        parts = [made["folder"]] if "folder" in made else []
        if "class" in made:
            dtype = f" in {made['dtype']}" if "dtype" in made else ""
            why = f" ({made['no_twin']})" if "no_twin" in made else ""
            parts.append(f"{made['class']}{dtype}, checkpoint: {made['checkpoint']}{why}")
        if parts := [*parts, *_changed(result)]:
            yield f"{result.subject}: {'; '.join(parts)}\n"


def digests(results: Sequence[Result]) -> Iterator[str]:
    """What `--digest` has found, as `xxhsum -H2` prints it."""
    for result in results:
        folder = result.details.get("subject", {}).get("folder", result.subject)
        measured = result.details.get("truncated-file", {}).get("measured", {})
        for file, found in measured.items():
            yield (
                f"{found['xxh3_128']} "
                f" {folder if folder.endswith(file) else os.path.join(folder, file)}\n"
            )


def options(settings: "LoadCheck", checkpoint: Path | None) -> list[str]:
    """What was asked beside the subjects, as words of the command line:

    what is not as it is where nothing is given.
    """
    given = {**dict(settings), **{f"limits.{name}": value for name, value in settings.limits}}
    usual = {name: field.default for name, field in type(settings).model_fields.items()}
    usual |= {f"limits.{name}": value for name, value in usual["limits"]}
    words = [
        f"{name}={_word(value)}"
        for name, value in given.items()
        if name not in _NOT_SETTINGS and value != usual[name]
    ]
    words += [f"--python={settings.python}"] if settings.python else []
    return words + ([f"--checkpoint={checkpoint}"] if checkpoint else [])


_NOT_SETTINGS = ("kind", "subjects", "limits", "python")


def _word(value: object) -> str:
    """A value in Hydra's grammar."""
    if isinstance(value, tuple):
        return f"[{','.join(each if each.replace('-', '_').isidentifier() else json.dumps(each) for each in value)}]"
    return str(value)


def _changed(result: Result) -> list[str]:
    made = result.details.get("subject", {})
    fields = [f"{name}={value!r}" for name, value in made.get("fields_guessed", {}).items()]
    groups = (
        ("replaced", made.get("parts_replaced", [])),
        ("guessed, because the config lacks it", fields),
    )
    return [f"{word}: {_listed(entries)}" for word, entries in groups if entries]


def _listed(entries: Sequence[str]) -> str:
    return ", ".join(entries[:SHOWN]) + (
        f" and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
    )


def without_notes(results: Sequence[Result]) -> list[Result]:
    """Of a whole framework only what matters is printed;

    JSON has everything, and so has a subject by itself.
    """
    return [
        replace(result, findings=tuple(each for each in result.findings if each.severity != "note"))
        for result in results
    ]


def last_line(results: Sequence[Result]) -> str:
    """What no verdict could be had of is never passed over:

    subjects, and of those that were judged, single checks.
    """
    missed = [result for result in results if result.verdict == "not-run"]
    judged = [result for result in results if result.verdict in ("clean", "unsafe")]
    rules = [
        rule for result in judged for rule, state in result.checks.items() if state == "not-run"
    ]
    if len(results) == 1:
        said = [_reason(result) for result in missed] or [
            text for result in judged for text in _reasons(result, rules)
        ]
        return f"not run: {'; '.join(said)}\n" if said else ""
    parts = (
        [f"{len(results) - len(missed)} of {len(results)} subjects judged, {len(missed)} not run"]
        if missed
        else []
    )
    if rules:
        counted = ", ".join(f"{rule} {rules.count(rule)}" for rule in dict.fromkeys(rules))
        parts.append(f"checks not run, of judged subjects: {counted}")
    return f"{'; '.join(parts)}\n" if parts else ""


def _reasons(result: Result, rules: Sequence[str]) -> Iterator[str]:
    """Each reason once, behind the checks that it is of."""
    of: dict[str, list[str]] = {}
    for rule in rules:
        of.setdefault(
            str(result.details.get(rule, {}).get("reason", "no reason is known")), []
        ).append(rule)
    for reason, names in of.items():
        yield f"{', '.join(names) if len(names) <= SHOWN else f'{len(names)} checks'}: {reason}"


def _reason(result: Result) -> str:
    reasons = [str(detail["reason"]) for detail in result.details.values() if "reason" in detail]
    return (
        reasons[0]
        if reasons
        else result.findings[0].message
        if result.findings
        else "no reason is known"
    )
