"""The command `vtool load-check SUBJECT… [KEY=VALUE]…`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli import complete
from vtool.cli.formats import OutputFormat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vtool.config.schema import LoadCheck
    from vtool.diagnostics.result import Result


class FrameworkName(StrEnum):
    """A framework with a registry of classes."""

    vllm = "vllm"
    transformers = "transformers"
    sglang = "sglang"


def load_check(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete.subjects,
            metavar="SUBJECT… [KEY=VALUE]…",
            help=(
                "A folder, a .safetensors file, vllm:NAME, transformers:NAME, sglang:NAME,"
                " python:FILE.py:factory, a recipe; settings."
            ),
        ),
    ] = None,
    all: Annotated[
        FrameworkName | None,
        typer.Option("--all", help="Check every class that this framework has registered."),
    ] = None,
    changed_since: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="With --all: check only classes whose code has changed since this git commit.",
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(metavar="EXE", help="Python interpreter in which the framework is installed."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the checkpoint to load into python:FILE.py:factory subjects.",
            file_okay=False,
        ),
    ] = None,
    digest: Annotated[
        bool,
        typer.Option(
            "--digest", help="Print a checksum (xxh3-128) of every weight file of a folder."
        ),
    ] = False,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Count only findings that are not in FILE. If FILE does not exist,"
                " write the present ones to it."
            ),
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help=(
                "Exit with 2 instead of 0 if a subject's class, or its weight values, could"
                " not be checked."
            ),
        ),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the results as an HTML page.")
    ] = None,
    format: Annotated[
        OutputFormat, typer.Option(help="How findings are printed.")
    ] = OutputFormat.full,
) -> None:
    """Check that every weight lands, whatever loads it.

    Weight files are audited. Classes of models also load from loaders that reuse their buffers.
    """
    import sys

    from vtool.cli.common import exit_on_findings
    from vtool.cli.load_check_text import (
        Live,
        counts_table,
        describe_subjects,
        digest_lines,
        last_line,
        options,
    )
    from vtool.diagnostics import Findings
    from vtool.diagnostics.render import MACHINE, render_results
    from vtool.loading.check import CheckProgress, check_subjects
    from vtool.loading.requested import in_named_order, load_check_settings

    subjects, overrides = _split_arguments(arguments or [])
    shown = " ".join(subjects) or (f"--all {all}" if all else "")
    with exit_on_findings("load-check", shown, format):
        try:
            settings, typed = load_check_settings(
                subjects,
                overrides,
                framework=all and str(all),
                python=python,
                changed_since=changed_since,
            )
        except Findings:
            raise
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--all") from error
        if checkpoint is not None and not checkpoint.is_dir():
            raise typer.BadParameter(f"there is no folder {checkpoint}", param_hint="--checkpoint")
        can_write(baseline, html)
        live = Live(sys.stderr, enabled=settings.subjects.all is not None)
        found: list[CheckProgress] = []
        stopped = None
        try:
            for progress in check_subjects(
                settings, checkpoint, live.ready, digest=digest, typed=typed
            ):
                found.append(progress)
                live.show(progress)
        except KeyboardInterrupt:
            if not found:
                raise
            stopped = f"stopped after {len(found)} of {found[-1].of}"
        live.end()
    results: Sequence[Result] = in_named_order(
        (progress.result for progress in found), settings, typed
    )
    command_options = options(settings, checkpoint)
    recorded = _record(results, command_options, baseline, html, stopped)
    results = list(recorded.results)
    many = settings.subjects.all is not None
    if format not in MACHINE:
        sys.stdout.write(counts_table(results) if many and len(results) > 1 else "")
        sys.stdout.writelines(
            describe_subjects(results) if format is OutputFormat.full and not many else ()
        )
        sys.stdout.writelines(digest_lines(results))
    (sys.stderr if format in MACHINE else sys.stdout).writelines(
        f"{line}\n" for line in recorded.lines
    )
    render_results(
        results,
        format,
        command="load-check",
        options=command_options,
        stream=sys.stdout,
        notes=not many,
    )
    if format not in MACHINE:
        sys.stdout.write(last_line(results))
    not_asked = [line for result in results if strict for line in _not_asked(result)]
    untouched = [] if results else [_nothing_changed(settings)]
    for line in (*recorded.failed, *not_asked, *([stopped] if stopped else []), *untouched):
        sys.stderr.write(f"{line}\n")
    raise typer.Exit(130 if stopped else _status(results, recorded.failed, not_asked))


def _status(
    results: "Sequence[Result]", failed: "Sequence[str]", not_asked: "Sequence[str]"
) -> int:
    """Return the exit status: what was found comes before a class that was not asked."""
    from vtool.diagnostics.result import exit_code

    if failed:
        return 2
    if not results:  # none was changed since the commit that was named
        return 0
    # of a folder whose class was not asked, the files were
    files = any("passed" in result.checks.values() for result in results)
    status = 0 if exit_code(results) == 2 and files else exit_code(results)
    return status or (2 if not_asked else 0)


def _nothing_changed(settings: "LoadCheck") -> str:
    return f"nothing to judge: no model file changed since {settings.subjects.changed_since}"


def nothing_asked(result: "Result") -> bool:
    """Return True if no check of a class was run: of a folder, only the files were audited."""
    from vtool.diagnostics.rules_loading import CLASS_RULES, FRAMEWORK_CLASS_RULES

    asked = [
        result.checks[rule] for rule in CLASS_RULES + FRAMEWORK_CLASS_RULES if rule in result.checks
    ]
    return result.verdict != "failed" and set(asked) <= {"not-run"}


def _not_asked(result: "Result") -> "Iterator[str]":
    from vtool.cli.load_check_text import cut_off, values_not_run, why_not_run

    if nothing_asked(result):
        yield f"--strict: {result.subject}: its class was not checked: {why_not_run(result)}"
    elif result.verdict == "not-run" and (missed := values_not_run(result)):
        yield f"--strict: {result.subject}: {missed}"
    elif result.verdict == "not-run" and (missed := cut_off(result)):
        yield f"--strict: {result.subject}: not run: {missed}"


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The results after a comparison with a baseline, and after a page is written."""

    results: "Sequence[Result]"
    lines: "Sequence[str]"
    """Lines to print about baseline and page."""
    failed: "Sequence[str]"
    """Errors of writing them, printed after the results, so that those are not lost."""


def _record(
    results: "Sequence[Result]",
    command_options: "Sequence[str]",
    baseline: Path | None,
    html: Path | None,
    stopped: str | None,
) -> _Recorded:
    from vtool.diagnostics import Findings

    lines, failed = [], []
    if baseline is not None and stopped and not baseline.exists():
        lines.append(
            f"baseline: nothing is recorded in {baseline}, because not everything was checked"
        )
    elif baseline is not None:
        from vtool.diagnostics.baseline import compare_with_baseline

        try:
            compared = compare_with_baseline(results, baseline)
        except Findings as findings:
            failed.append(str(findings))
        else:
            results, lines = compared.results, compared.lines(baseline)
    if html is not None:
        from vtool.diagnostics.render import as_json
        from vtool.report.load_check import write_load_check

        try:
            document = as_json(results, "load-check", command_options)
            lines.append(f"page: {write_load_check(document, html)}")
        except OSError as error:
            failed.append(f"{html} cannot be written: {error.strerror}")
    return _Recorded(results, lines, failed)


def _split_arguments(arguments: "Sequence[str]") -> tuple[list[str], list[str]]:
    """Split arguments into subjects and settings; a subject may have an = in its path."""
    import os

    subjects = [
        text
        for text in arguments
        if "=" not in text or text.startswith("python:") or os.path.lexists(text)
    ]
    return subjects, [text for text in arguments if text not in subjects]


def can_write(baseline: Path | None, html: Path | None, document: Path | None = None) -> None:
    """Check before anything is run that the files can be written: one for each of what is named."""
    from tempfile import TemporaryFile

    from vtool.diagnostics.baseline import compare_with_baseline
    from vtool.report.replaceable import check_document_replaceable, check_replaceable

    named = ((baseline, "--baseline"), (html, "--html"), (document, "--json"))
    for file, option in named:
        try:
            there = file is not None and file.exists()
        except OSError as error:  # a name that is too long, or a folder that nobody may look into
            raise typer.BadParameter(f"{file}: {error.strerror}", param_hint=option) from error
        if there and file is not None and file == baseline:
            compare_with_baseline((), file)
    if document is not None and document in (baseline, html):
        other = "--html" if document == html else "--baseline"
        raise typer.BadParameter(f"{document} is the file of {other} too", param_hint="--json")
    checks = {"--html": check_replaceable, "--json": check_document_replaceable}
    for file, option in named:
        if file is None or (file == baseline and file.is_file()):
            continue
        if not file.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {file.parent}", param_hint=option)
        if file.is_dir():
            raise typer.BadParameter(f"{file} is a folder; name a file", param_hint=option)
        if option in checks:
            try:
                checks[option](file)
            except OSError as error:
                raise typer.BadParameter(f"{file}: {error.strerror}", param_hint=option) from error
        try:
            TemporaryFile(dir=file.parent).close()
        except OSError as error:
            raise typer.BadParameter(
                f"{file.parent} cannot be written into: {error.strerror}", param_hint=option
            ) from error
