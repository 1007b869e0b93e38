"""The output of `vtool load-check` in addition to its findings.

Progress, the table of many subjects, digests, and what was not run.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtool.diagnostics.by_line import by_line, count_lines
from vtool.diagnostics.printable import printable
from vtool.diagnostics.result import Result
from vtool.diagnostics.rules_loading import CLASS_RULES
from vtool.loading.words import listed
from vtool.words import plural

if TYPE_CHECKING:
    from vtool.config.schema import LoadCheck
    from vtool.loading.check import CheckProgress
    from vtool.loading.probe.facts import Ready

_SHOWN = 4


class Live:
    """Progress on standard error: a line for each subject, or on a terminal one that changes."""

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

    def show(self, progress: "CheckProgress") -> None:
        """Print that one more subject has its result."""
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
        """Return the line no wider than the terminal: a wrapped one cannot be overwritten."""
        # a terminal that does not know its width says 0
        most = (os.get_terminal_size(self.stream.fileno()).columns or 80) - 1
        return line if len(line) <= most else line[: most - 1] + "…"

    def end(self) -> None:
        """Clear the terminal's line."""
        if self.enabled and self.wide:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


def counts_table(results: Sequence[Result]) -> str:
    """Return for each check how many subjects passed, failed, or did not run it.

    Then come the verdicts, and every subject that was not judged.
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
    if alone := sum(_loading_only(result) for result in results):
        lines.append(
            f"{alone} clean: loading only (their names were found by trying: no verdict on"
            " tensors that are not read, nor on parameters that are not written)"
        )
    if changed := sum(bool(_changed(result)) for result in results):
        lines.append(
            f"{changed} with parts replaced or fields guessed, which json and the page name"
        )
    if notes := count_lines(by_line(results))["notes"]:
        lines.append(f"{plural(notes, 'note')}, which json and the page have")
    lines += [
        f"  not run: {result.subject}: {_reason(result)}"
        for result in results
        if result.verdict == "not-run"
    ]
    return "\n".join(lines) + "\n\n"


def _loading_only(result: Result) -> bool:
    """Return True if a class is clean, and no checkpoint showed which names it has to take."""
    return (
        result.verdict == "clean"
        and result.details.get("subject", {}).get("oracle") == "loading only"
    )


def describe_subjects(results: Sequence[Result]) -> Iterator[str]:
    """Yield a line for each subject, with its class, its checkpoint and its changes.

    The line has the folder of a recipe too, and why a subject was not judged, if it is not alone.
    """
    for result in results:
        made = result.details.get("subject", {})
        parts = [made["folder"]] if "folder" in made else []
        if result.verdict == "not-run" and (missed := values_not_run(result)):
            parts.append(f"files, names, shapes and dtypes clean, {missed}")
        elif result.verdict == "not-run" and (missed := cut_off(result)):
            parts.append(f"clean as far as it was checked, not-run of its class: {missed}")
        elif result.verdict == "not-run" and "passed" in result.checks.values():
            why = f": {why_not_run(result)}" if len(results) > 1 else ""  # of one, as above
            parts.append(f"files clean, class not-run{why}")
            parts += _held_against(result)
        elif result.verdict == "not-run" and len(results) > 1:  # of one, the last line has it
            parts.append(f"not run: {why_not_run(result)}")
        if "class" in made:
            dtype = f" in {made['dtype']}" if "dtype" in made else ""
            why = f" ({made['no_twin']})" if "no_twin" in made else ""
            parts.append(f"{made['class']}{dtype}, checkpoint: {made['checkpoint']}{why}")
            parts += ["clean: loading only"] if _loading_only(result) else []
        if parts := [*parts, *_changed(result)]:
            yield printable(f"{result.subject}: {'; '.join(parts)}") + "\n"


def _held_against(result: Result) -> list[str]:
    """Return in words whether a folder's weights were held against transformers' class."""
    found = result.details.get(_OF_CLASS, {})
    if result.checks.get(_OF_CLASS) == "passed":
        return [f"transformers has the same {found.get('measured')}"]
    return [f"names not compared: {found['reason']}"] if "reason" in found else []


def digest_lines(results: Sequence[Result]) -> Iterator[str]:
    """Yield the digests of files, as `xxhsum -H2` prints them."""
    for result in results:
        folder = result.details.get("subject", {}).get("folder", result.subject)
        measured = result.details.get("truncated-file", {}).get("measured", {})
        for file, found in measured.items():
            path = folder if folder.endswith(file) else os.path.join(folder, file)
            yield f"{found['xxh3_128']}  {printable(path)}\n"


def options(settings: "LoadCheck", checkpoint: Path | None) -> list[str]:
    """Return the settings that are not the defaults, as words of the command line."""
    given = {**dict(settings), **{f"limits.{name}": value for name, value in settings.limits}}
    defaults = {name: field.default for name, field in type(settings).model_fields.items()}
    defaults |= {f"limits.{name}": value for name, value in defaults["limits"]}
    words = [
        f"{name}={_word(value)}"
        for name, value in given.items()
        if name not in _NOT_SETTINGS and value != defaults[name]
    ]
    words += [f"--python={settings.python}"] if settings.python else []
    return words + ([f"--checkpoint={checkpoint}"] if checkpoint else [])


_OF_CLASS = "weights-not-of-class"
_NOT_SETTINGS = ("kind", "subjects", "limits", "python")


def _word(value: object) -> str:
    """Return a value in Hydra's grammar."""
    if isinstance(value, tuple):
        words = (
            each if each.replace("-", "_").isidentifier() else json.dumps(each) for each in value
        )
        return f"[{','.join(words)}]"
    return str(value)


def _changed(result: Result) -> list[str]:
    made = result.details.get("subject", {})
    fields = [f"{name}={value!r}" for name, value in made.get("fields_guessed", {}).items()]
    groups = (
        ("replaced", made.get("parts_replaced", [])),
        ("guessed, because the config lacks it", fields),
    )
    return [f"{word}: {listed(entries, _SHOWN)}" for word, entries in groups if entries]


def last_line(results: Sequence[Result]) -> str:
    """Return the last line: the subjects without a verdict, and checks that were not run.

    What was not checked must not read as if it had passed.
    """
    missed = [result for result in results if result.verdict == "not-run"]
    judged = [result for result in results if result.verdict in ("clean", "unsafe")]
    rules = [
        rule for result in judged for rule, state in result.checks.items() if state == "not-run"
    ]
    if len(results) == 1:
        reasons = [why_not_run(result) for result in missed] or [
            text for result in judged for text in _reasons(result, rules)
        ]
        return f"not run: {'; '.join(reasons)}\n" if reasons else ""
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
    """Yield each reason once, after the checks that were not run for it."""
    of: dict[str, list[str]] = {}
    for rule in rules:
        of.setdefault(
            printable(str(result.details.get(rule, {}).get("reason", "no reason is known"))), []
        ).append(rule)
    for reason, names in of.items():
        yield f"{', '.join(names) if len(names) <= _SHOWN else f'{len(names)} checks'}: {reason}"


def values_not_run(result: Result) -> str | None:
    """Return of how many tensors the values were not compared, and why; None where of none."""
    values = result.details.get("subject", {}).get("values") or {}
    if not (reasons := values.get("not_run")):
        return None
    why, names = next(iter(reasons.items()))
    more = f", and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
    return printable(
        f"values not-run of {values['tensors'] - values['compared']:,} of"
        f" {values['tensors']:,} tensors: {why} ({listed(names)}{more})"
    )


def cut_off(result: Result) -> str | None:
    """Return the checks that were not reached, and why; None where all were."""
    ended = result.details.get("subject", {}).get("ended")
    rules = [rule for rule, detail in result.details.items() if detail.get("reason") == ended]
    return printable(f"{', '.join(rules)}: {ended}") if ended else None


def why_not_run(result: Result) -> str:
    """Return why the class of a subject was not checked."""
    reasons = [
        str(result.details[rule]["reason"])
        for rule in CLASS_RULES
        if "reason" in result.details.get(rule, {})
    ]
    return printable(reasons[0]) if reasons else _reason(result)


def _reason(result: Result) -> str:
    if missed := values_not_run(result) or cut_off(result):
        return missed
    reasons = [
        str(detail["reason"])
        for rule, detail in result.details.items()
        if "reason" in detail and rule != _OF_CLASS
    ]
    return (
        printable(reasons[0])
        if reasons
        else result.findings[0].message
        if result.findings
        else "no reason is known"
    )
