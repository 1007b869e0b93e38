"""`vtool load-check SUBJECT… [KEY=VALUE]…`"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli.formats import Format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from vtool.config.schema import LoadCheck
    from vtool.diagnostics.result import Result
    from vtool.loading.check import Progress

# The settings of a subject that is named on the command line.
RECIPE = "load_check"


class FrameworkName(StrEnum):
    """What has a registry of classes."""

    vllm = "vllm"
    transformers = "transformers"
    sglang = "sglang"


def load_check(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUBJECT… [KEY=VALUE]…",
            help="vllm:NAME, transformers:NAME, sglang:NAME, python:FILE.py:factory, or a recipe of kind load_check; and settings.",
        ),
    ] = None,
    all: Annotated[FrameworkName | None, typer.Option("--all", help="Every class of this framework.")] = None,
    python: Annotated[str | None, typer.Option(metavar="EXE", help="The interpreter that has the framework.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="What python: subjects are loaded from.", file_okay=False)] = None,
    format: Annotated[Format, typer.Option(help="How findings are printed.")] = Format.full,
) -> None:
    """Check that every weight lands, whatever loads it: classes are loaded by loaders that take back what they gave."""
    import sys

    from vtool.cli.common import reported
    from vtool.diagnostics.render import render
    from vtool.diagnostics.result import exit_code
    from vtool.loading.check import check_classes

    subjects, overrides = _told_apart(arguments or [])
    shown = " ".join(subjects) or (f"--all {all}" if all else "")
    with reported("load-check", shown, format):
        settings = _settings(subjects, overrides, all, python)
        if checkpoint is not None and not checkpoint.is_dir():
            raise typer.BadParameter(f"there is no folder {checkpoint}", param_hint="--checkpoint")
        live = Live(sys.stderr, enabled=settings.subjects.all is not None)
        results = []
        for progress in check_classes(settings, checkpoint, live.ready):
            results.append(progress.result)
            live.show(progress)
        live.end()
    if format is not Format.json and len(results) > 1:
        sys.stdout.write(table(results))
    render(
        results if format is Format.json or len(results) == 1 else _without_notes(results), format, command="load-check", stream=sys.stdout
    )
    if format is not Format.json:
        sys.stdout.write(_not_run(results))
    raise typer.Exit(exit_code(results))


def _told_apart(arguments: "Sequence[str]") -> tuple[list[str], list[str]]:
    """Subjects, and settings; a subject may have an = in its path."""
    subjects = [text for text in arguments if "=" not in text or text.startswith("python:")]
    return subjects, [text for text in arguments if text not in subjects]


def _settings(subjects: "Sequence[str]", overrides: "Sequence[str]", all: FrameworkName | None, python: str | None) -> "LoadCheck":
    from vtool.config.load import load_load_check
    from vtool.config.resources import recipe_names
    from vtool.diagnostics import Diagnostic, Findings

    recipe = RECIPE
    if subjects and (subjects[0] in recipe_names() or subjects[0].endswith((".yaml", ".yml"))):
        recipe, *subjects = subjects
    settings = load_load_check(recipe, overrides).load_check
    named = settings.subjects
    if subjects:
        named = named.model_copy(update={"names": tuple(subjects), "all": None})
    if all:
        named = named.model_copy(update={"all": str(all)})
    if not named.names and not named.all:
        help = "write vllm:NAME, python:FILE.py:factory, or --all vllm"
        raise Findings(Diagnostic("unknown-subject", "nothing is named that could be checked", help), fatal=True)
    return settings.model_copy(update={"subjects": named, "python": python or settings.python})


class Live:
    """Progress on standard error: one line that changes, on a terminal; else a line for each subject."""

    def __init__(self, stream: "Any", *, enabled: bool) -> None:
        self.stream, self.enabled = stream, enabled
        self.wide = stream.isatty()
        self.counts: dict[str, int] = {}

    def ready(self, event: "Mapping[str, Any]") -> None:
        """The framework is imported."""
        if self.enabled:
            named = f"{event['name']} {event['version']}"
            self.stream.write(f"{named}, torch {event['torch']}, imported in {event['seconds']:.1f} s: {len(event['subjects'])} classes\n")

    def show(self, progress: "Progress") -> None:
        """One more subject has its result."""
        if not self.enabled:
            return
        verdict = progress.result.verdict
        self.counts[verdict] = self.counts.get(verdict, 0) + 1
        seconds = progress.facts.get("seconds")
        line = f"{progress.done}/{progress.of} {progress.result.subject}: {verdict}" + (f", {seconds:.1f} s" if seconds is not None else "")
        if self.wide:
            counts = ", ".join(f"{count} {word}" for word, count in self.counts.items())
            self.stream.write(f"\r\x1b[K{line} ({counts})")
        else:
            self.stream.write(f"{line}\n")
        self.stream.flush()

    def end(self) -> None:
        """Leave the terminal's line."""
        if self.enabled and self.wide:
            self.stream.write("\r\x1b[K")


def table(results: "Sequence[Result]") -> str:
    """For each check, how many subjects passed it, failed it, or were not asked; then every subject that is not clean."""
    rules = list(dict.fromkeys(rule for result in results for rule in result.checks))
    width = max((len(rule) for rule in rules), default=0)
    lines = [f"{'check':<{width}}  passed  failed  not run"]
    for rule in rules:
        states = [result.checks.get(rule) for result in results]
        lines.append(f"{rule:<{width}}  {states.count('passed'):>6}  {states.count('failed'):>6}  {states.count('not-run'):>7}")
    verdicts = [result.verdict for result in results]
    lines.append("")
    lines.append(", ".join(f"{verdicts.count(word)} {word}" for word in ("clean", "unsafe", "failed", "not-run") if word in verdicts))
    lines += [f"  not run: {result.subject}: {_reason(result)}" for result in results if result.verdict == "not-run"]
    return "\n".join(lines) + "\n\n"


def _reason(result: "Result") -> str:
    reasons = [str(detail["reason"]) for detail in result.details.values() if "reason" in detail]
    return reasons[0] if reasons else result.findings[0].message if result.findings else "no reason is known"


def _without_notes(results: "Sequence[Result]") -> "list[Result]":
    """Of many subjects only what matters is printed; JSON has everything, and so has a subject by itself."""
    from dataclasses import replace

    return [replace(result, findings=tuple(each for each in result.findings if each.severity != "note")) for result in results]


def _not_run(results: "Sequence[Result]") -> str:
    """The last line: what no verdict could be had of is never passed over."""
    missed = [result for result in results if result.verdict == "not-run"]
    if not missed:
        return ""
    if len(results) == 1:
        return f"not run: {_reason(missed[0])}\n"
    return f"{len(results) - len(missed)} of {len(results)} subjects judged, {len(missed)} not run\n"
