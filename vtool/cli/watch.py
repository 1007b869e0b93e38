"""The command `vtool watch [OPTIONS] -- COMMAND…`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from vtool.cli.command import OwnProcess
from vtool.cli.formats import OutputFormat
from vtool.cli.launcher import check_launcher
from vtool.model_folder import TOKENIZER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vtool.diagnostics.result import Result
    from vtool.watch.folder import WatchOptions

_COMMAND = "vtool.watch.command"


class FailOn(StrEnum):
    """The least severe finding that counts."""

    error = "error"
    warning = "warning"


class StopOn(StrEnum):
    """The finding that ends the command."""

    error = "error"


class WatchCommand(TyperCommand):
    """A command that takes all behind `--` as it is: options there are another command's.

    That one keeps its environment, so nothing is prepared here.
    """

    def invoke(self, ctx: Any) -> Any:
        """Say where a launcher is before `vtool watch`, and not behind it; run the command."""
        if isinstance(ctx.obj, OwnProcess) and ctx.meta[_COMMAND]:
            check_launcher("watch")
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what is before `--`, and keep what is behind it."""
        split = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[split + 1 :]
        if split == len(args) and (words := self._command_of(args)):
            here = " ".join(["vtool watch", *args[: -len(words)], "--", *words])
            ctx.fail(f"put -- before the command: {here}")
        return super().parse_args(ctx, args[:split])

    def _command_of(self, args: list[str]) -> list[str]:
        """Return the words from the first on that is neither an option nor an option's value."""
        flags = {name: getattr(one, "is_flag", False) for one in self.params for name in one.opts}
        position = 0
        while position < len(args):
            word = args[position]
            if not word.startswith("-"):
                return args[position:]
            position += 1 if flags.get(word, True) else 2
        return []


def watch(
    context: typer.Context,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the recorded facts: new, or empty. Default: watch-DATE-TIME.",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Number of first optimizer steps to analyze in full.")
    ] = 3,
    every: Annotated[
        int, typer.Option(min=0, help="After those, analyze every Nth step too; 0: none.")
    ] = 0,
    tokens: Annotated[
        int,
        typer.Option(
            min=1,
            help=(
                "Most supervised tokens per step, in each process, whose weight in the"
                " loss is measured; of more, a sample."
            ),
        ),
    ] = 4096,
    memory: Annotated[
        int,
        typer.Option(
            metavar="MIB",
            min=1,
            help=(
                "Most device memory for what the analysis keeps, such as hidden states and"
                " gradients. What needs more is not checked, and that is reported."
            ),
        ),
    ] = 1024,
    text: Annotated[
        bool,
        typer.Option(
            "--text/--no-text",
            help="Record all token ids of the first rows, or only those that are learnt.",
        ),
    ] = True,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with tokenizer.json and the chat template. Default: the model's own.",
        ),
    ] = None,
    print_env: Annotated[
        bool,
        typer.Option(
            "--print-env",
            help=(
                "Print the environment variables that turn the watch on, for srun, Ray"
                " and containers."
            ),
        ),
    ] = False,
    read: Annotated[
        Path | None,
        typer.Option(
            metavar="FACTS", help="Report on facts that were recorded earlier; no command is run."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the results as an HTML page.")
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the results to FILE as --format json prints them.",
        ),
    ] = None,
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
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            help=(
                "Exit with 1 for a finding of this severity or worse, with 2 if nothing, or"
                " not what a clean run takes, could be checked. Default: the command's own exit"
                " status."
            )
        ),
    ] = None,
    stop_on: Annotated[
        StopOn | None,
        typer.Option(
            help="Interrupt the command, as Ctrl-C would, if the first --steps steps show an error."
        ),
    ] = None,
    format: Annotated[
        OutputFormat, typer.Option(help="How findings are printed.")
    ] = OutputFormat.full,
) -> None:
    """Show what any trainer really teaches, read from its gradients.

    The command behind -- runs as it is, with its own output and exit status.
    """
    import sys

    from vtool.cli.common import exit_on_findings
    from vtool.cli.load_check import can_write
    from vtool.watch.folder import WatchOptions

    command = list(context.meta[_COMMAND])
    options = WatchOptions(steps, every, tokens, memory, text)
    _check(command, read, print_env, to, tokenizer)
    with exit_on_findings("watch", str(read or " ".join(command)[:80]), format):
        can_write(baseline, html, json)
    page = _Page(baseline, html, json, tokenizer, format)
    if read is not None:
        results = page.conclude(read, sys.stdout, str(read))
        raise typer.Exit(_exit_status(results, 0, fail_on or FailOn.error, page.failed))
    if print_env:
        _print_env(to, options)
        return
    status, folder = _run(command, to, options, stop_on, tokenizer)
    try:
        results = page.conclude(folder, sys.stderr, " ".join(command)[:80], status)
    except typer.Exit:  # there are no facts any more, and that is reported
        raise typer.Exit(status or (2 if fail_on else 0)) from None
    except Exception as error:  # the command did what it did, whatever we make of it
        _say(f"nothing is concluded: {type(error).__name__}: {error} (vtool watch --read {folder})")
        raise typer.Exit(status or (2 if fail_on else 0)) from None
    raise typer.Exit(_exit_status(results, status, fail_on, page.failed))


class _Page:
    """Everything that is made of the facts, besides the findings that are printed."""

    def __init__(
        self,
        baseline: Path | None,
        html: Path | None,
        document: Path | None,
        tokenizer: Path | None,
        format: OutputFormat,
    ) -> None:
        self.baseline, self.html, self.document = baseline, html, document
        self.tokenizer, self.format = tokenizer, format
        self.failed: list[str] = []
        """Lines about what could not be written."""

    def conclude(
        self, folder: Path, stream: Any, subject: str, status: int | None = None
    ) -> "Sequence[Result]":
        """Conclude from a folder of facts, and print and write what follows."""
        from vtool.cli.common import exit_on_findings, print_results
        from vtool.diagnostics.render import MACHINE, as_json
        from vtool.watch.conclude import conclude_folder
        from vtool.watch.text import describe_results

        with exit_on_findings("watch", subject, self.format):
            concluded = conclude_folder(folder, subject, self.tokenizer, status)
        results, lines = self._compare(concluded)
        if self.format not in MACHINE:
            stream.writelines(f"{line}\n" for line in describe_results(results))
        print_results(results, "watch", self.format, stream)
        if self.html is not None:
            from vtool.report.watch import write_watch

            try:
                lines.append(f"page: {write_watch(as_json(results, 'watch'), self.html)}")
            except OSError as error:
                self.failed.append(f"{self.html} cannot be written: {error.strerror}")
        if self.document is not None:
            from vtool.report.replaceable import write_document

            try:
                lines.append(f"JSON: {write_document(as_json(results, 'watch'), self.document)}")
            except OSError as error:
                self.failed.append(f"{self.document} cannot be written: {error.strerror}")
        for line in (*lines, *self.failed):
            typer.echo(line, err=True)
        return results

    def _compare(self, results: "Sequence[Result]") -> "tuple[Sequence[Result], list[str]]":
        from vtool.diagnostics import Findings
        from vtool.diagnostics.baseline import compare_with_baseline

        if self.baseline is None:
            return results, []
        try:
            compared = compare_with_baseline(results, self.baseline)
        except Findings as findings:
            self.failed.append(str(findings))
            return results, []
        return compared.results, compared.lines(self.baseline)


def _run(
    command: "Sequence[str]",
    to: Path | None,
    options: "WatchOptions",
    stop_on: StopOn | None,
    tokenizer: Path | None,
) -> tuple[int, Path]:
    """Run the command under the watch; return its exit status and the folder of the facts."""
    import os

    from vtool.watch.command import (
        NotRunnableError,
        find_command,
        find_interpreter,
        isolated,
        run_command,
    )
    from vtool.watch.folder import make_folder, watched_environment
    from vtool.watch.stop import Stopper

    try:
        file = find_command(command[0])
    except ValueError as error:  # with the status that a shell has for it
        _say(str(error))
        raise typer.Exit(126 if isinstance(error, NotRunnableError) else 127) from None
    try:
        folder = make_folder(to)
    except ValueError as error:
        _say(str(error))
        raise typer.Exit(2) from None
    interpreter = find_interpreter(file)
    _say(f"{file}{f' ({interpreter})' if interpreter else ''}; facts go to {folder}")
    if option := isolated(command):
        _say(f"{option} makes this Python ignore PYTHONPATH: nothing of it will be seen")
    stopper = Stopper(folder, options.steps, tokenizer) if stop_on else None
    try:
        status = run_command(
            file,
            command,
            watched_environment(folder, options, os.environ),
            stopper.look if stopper else None,
        )
    except OSError as error:
        _say(f"{file} cannot be started: {error.strerror}")
        raise typer.Exit(126) from None
    if stopper and stopper.rule:
        _say(stopper.checkpoint())
    return status, folder


def _say(line: str) -> None:
    typer.echo(f"vtool watch: {line}", err=True)


def _print_env(to: Path | None, options: "WatchOptions") -> None:
    from vtool.watch.folder import exports, make_folder

    try:
        typer.echo(exports(make_folder(to), options), nl=False)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from error


def _exit_status(
    results: "Sequence[Result]", status: int, fail_on: FailOn | None, failed: "Sequence[str]"
) -> int:
    """Return the command's own status, unless that is 0 and something else is asked for."""
    from vtool.diagnostics.result import count

    if status or fail_on is None:
        return status
    if failed or all(result.verdict == "not-run" for result in results):
        return 2
    counts = count(results)
    if counts["errors"] + (counts["warnings"] if fail_on is FailOn.warning else 0):
        return 1
    return 2 if any(result.verdict == "incomplete" for result in results) else 0


def _check(
    command: "Sequence[str]",
    read: Path | None,
    print_env: bool,
    to: Path | None,
    tokenizer: Path | None,
) -> None:
    """Check that there is one thing to do."""
    asked = {"--read": read is not None, "--print-env": print_env, "a command": bool(command)}
    given = [name for name, on in asked.items() if on]
    if not given:
        raise typer.BadParameter(
            "there is no command to watch: vtool watch -- python train.py …", param_hint="COMMAND"
        )
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} do not go together", param_hint="COMMAND")
    if read is not None and to is not None:
        raise typer.BadParameter("nothing is written with --read", param_hint="--to")
    if tokenizer is not None and not (tokenizer / TOKENIZER).is_file():
        raise typer.BadParameter(f"there is no {tokenizer / TOKENIZER}", param_hint="--tokenizer")
