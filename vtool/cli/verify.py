"""The command `vtool verify RECIPE | ROWS-FILE [KEY=VALUE]…`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli import complete
from vtool.cli.formats import OutputFormat

if TYPE_CHECKING:
    from vtool.config.schema import Run
    from vtool.diagnostics.result import Result
    from vtool.verification.rows import Audit

SPAN_WIDTH = 60
"""Characters of a span's text in the table."""
_MADE_HERE = (
    "tokens are counted with a tiny built-in {} tokenizer, trained on these rows: lengths will"
    " differ with your model; to count with its tokenizer, add model.path=FOLDER"
)


def verify(
    subject: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.rows_or_recipe,
            metavar="RECIPE|ROWS-FILE",
            help="A recipe, or a file or a folder of rows.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete.overrides,
            metavar="KEY=VALUE",
            help="Settings, such as data.max_length=N.",
        ),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROW", help="Show this row, by its number or its name; may be repeated."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROOF",
            help=(
                "Run only this proof, by its rule's name or code, and no audit of rows;"
                " may be repeated."
            ),
        ),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Run only the proofs that one process makes in seconds, and no audit of rows.",
        ),
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Audit every row again: do not reuse earlier audits of unchanged rows."
        ),
    ] = False,
    near: Annotated[
        bool, typer.Option("--near", help="Also look for rows with nearly the same answers.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the audit of the rows as an HTML page."),
    ] = None,
    full_size: Annotated[
        bool,
        typer.Option(
            "--full-size",
            help="Run the proofs on the recipe's own model and weights, not on a tiny one.",
        ),
    ] = False,
    format: Annotated[
        OutputFormat, typer.Option(help="How findings are printed.")
    ] = OutputFormat.full,
) -> None:
    """Audit rows without training: lines, images, placeholders, labels, lengths.

    For a recipe, also run the proofs: they check, on a tiny model, that training computes what it
    should.
    """
    from vtool.cli.common import begin_with_training, exit_on_findings, print_results
    from vtool.cli.load_check import can_write
    from vtool.config.load import load_run
    from vtool.config.rows_recipe import names_rows
    from vtool.diagnostics.render import MACHINE
    from vtool.diagnostics.result import exit_code
    from vtool.verification.proofs import proof_names

    can_write(None, html)
    rows_only, readable = names_rows(subject), format not in MACHINE
    with _garbage_collection(enabled=full_size or not fast):
        with _without_page(html), exit_on_findings("verify", subject, format):
            proofs = proof_names(only or [])
            _check_options(
                _of_audit(row, html, near),
                rows_only=rows_only,
                only=bool(only),
                fast=fast,
                full_size=full_size,
            )
            given = [*(overrides or ()), *["data.audit_cache=renew"] * fresh]
            run = load_run(subject, given).run
            begin_with_training("vtool verify")
            from vtool.data.detect import detected
            from vtool.verification.rows import audit_rows

            run = detected(run) if rows_only else run
            audits = (
                []
                if only or fast
                else audit_rows(
                    run,
                    row or [],
                    look=html is not None,
                    near=near,
                    family_named=any(each.startswith("model.family=") for each in given),
                )
            )
        results = [
            _audit_result(subject, audit, run, readable, len(audits), rows_only) for audit in audits
        ]
        if not rows_only:
            about = f"{subject}: proofs" if audits else subject
            results.append(_proofs_result(about, run, proofs, readable, fast, full_size))
        print_results(results, "verify", format)
        written = html is None or _write_page(results, html)
        raise typer.Exit(exit_code(results) if written else 2)


@contextmanager
def _without_page(html: Path | None) -> Iterator[None]:
    """Say, where the command ends inside, that there is no page of it."""
    from vtool.diagnostics.printable import printable

    try:
        yield
    except typer.Exit:
        if html is not None:
            there = f"; {html} is of another time" if html.exists() else ""
            typer.echo(printable(f"no page is written{there}"), err=True)
        raise


def _write_page(results: "list[Result]", html: Path) -> bool:
    """Write the page, and say on standard error where it is, or why there is none."""
    from vtool.diagnostics.printable import printable
    from vtool.diagnostics.render import as_json
    from vtool.report.rows import write_rows

    try:
        written = write_rows(as_json(results, "verify"), html)
    except OSError as error:
        typer.echo(printable(f"{html} cannot be written: {error.strerror}"), err=True)
        return False
    typer.echo(printable(f"page: {written}"), err=True)
    return True


@contextmanager
def _garbage_collection(*, enabled: bool) -> Iterator[None]:
    """Switch Python's garbage collector off, for a command that lasts seconds and mostly imports.

    The imports of `verify --fast` make a million objects that stay; to look through them for
    garbage takes 0.5 to 1 s of its 10.
    """
    import gc

    if enabled or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Count all objects as old ones: otherwise the next allocation looks through them.
        gc.freeze()
        gc.unfreeze()
        gc.enable()


def _check_options(
    asked: tuple[str, str] | None, *, rows_only: bool, only: bool, fast: bool, full_size: bool
) -> None:
    """Check that each option has something to act on.

    Args:
        asked: an option that the audit of rows acts on, and what it does.

    Raises:
        Findings: `unknown-choice`.
    """
    from vtool.diagnostics import Diagnostic, Findings

    options = {"--only": only, "--fast": fast, "--full-size": full_size and rows_only}
    given = [name for name, on in options.items() if on]
    if given and rows_only:
        message = f"{', '.join(given)}: a file of rows is audited as it is; proofs are of a recipe"
        help = "name a recipe whose data.train is this file"
    elif given and asked:
        named, (option, what) = " and ".join(given), asked
        message = f"{what} by the audit of rows, which {named} leaves out"
        help = f"ask without {named}, or without {option}"
    else:
        return
    raise Findings(Diagnostic("unknown-choice", message, help), fatal=True)


def _of_audit(row: list[str] | None, html: Path | None, near: bool) -> tuple[str, str] | None:
    """Return an option that the audit acts on, and what it does."""
    if row:
        return "--row", f"--row {row[0]}: a row is shown"
    if html:
        return "--html", f"--html {html}: rows are shown"
    return ("--near", "--near: rows are compared") if near else None


def _audit_result(
    subject: str, audit: "Audit", run: "Run", readable: bool, audits: int, rows_only: bool
) -> "Result":
    from vtool.verification.audit_result import audit_result

    # a recipe without model.path trains a tokenizer too: there it is the run's
    made_here = rows_only and run.model.path is None
    tokenizer = _MADE_HERE.format(run.model.family) if made_here else None
    if readable:
        _print_ledger(audit, tokenizer)
    name = subject if audits == 1 else f"{subject}: data.{audit.split}"
    return audit_result(name, audit, run.data, tokenizer)


def _proofs_result(
    subject: str, run: "Run", only: tuple[str, ...], readable: bool, fast: bool, full_size: bool
) -> "Result":
    from vtool.cli.proofs import print_proofs, proofs_result, verdict_not_run
    from vtool.diagnostics import Findings
    from vtool.diagnostics.result import Result
    from vtool.verification.not_provable import NotProvable
    from vtool.verification.prove import prove

    try:
        proved = prove(run, only=only, fast=fast, full_size=full_size)
    except NotProvable as error:
        if readable:
            typer.echo(f"proofs: not run: {error.reason}")
        return verdict_not_run(subject, only, error.reason)
    except Findings as findings:  # in addition to what the audit has found
        return Result.of_findings(subject, findings.diagnostics)
    if readable:
        print_proofs(proved)
    return proofs_result(subject, proved)


def _print_ledger(audit: "Audit", tokenizer: str | None) -> None:
    """Print the counts and lengths of a split, what was dropped, and the rows shown."""
    import statistics

    from vtool.data.detect import describe_source, source_messages
    from vtool.diagnostics.printable import printable
    from vtool.words import plural

    ledger = audit.ledger
    for source in () if ledger.held_back else ledger.sources:
        if describe_source(source):
            typer.echo(f"data.{audit.split}: {describe_source(source)}")
        for message in source_messages(source):
            typer.echo(printable(f"data.{audit.split}: {message}"))
    if ledger.held_back:
        typer.echo(f"data.{audit.split}: {ledger.held_back}")
    kept = len(ledger.kept)
    rows = f"{plural(ledger.rows, 'row')} = {kept:,} kept + {ledger.rows - kept:,} dropped"
    shown = [plural(ledger.turns, "assistant turn"), plural(ledger.images, "image")]
    shown += [plural(ledger.videos, "video")] if ledger.videos else []
    typer.echo(f"data.{audit.split}: {rows}; {', '.join(shown)}, {ledger.truncated:,} truncated")
    for line in ledger.sources_in_words():
        typer.echo(printable(f"  {line}"))
    if ledger.reused:
        typer.echo(f"  {ledger.reused:,} rows are unchanged since their audit; --fresh repeats it")
    if ledger.lengths:
        low, high = min(ledger.lengths), max(ledger.lengths)
        middle = f"{statistics.median(ledger.lengths):.1f}".removesuffix(".0")
        lengths = str(low) if low == high else f"{low} to {high}, median {middle}"
        typer.echo(
            f"  tokens a row: {lengths}; {ledger.supervised_tokens} of {sum(ledger.lengths)}"
            " supervised"
        )
        if tokenizer:
            typer.echo(f"  {tokenizer}")
    for rule, counts in audit.measured.items():
        counted = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        how = "by their answers" if rule == "near-duplicate-rows" else "by torchvision and by PIL"
        typer.echo(f"  {how}: {counted}")
    if audit.example:
        from vtool.diagnostics.printable import printable_line

        typer.echo("  the first kept row as the model reads it, ⟦supervised⟧ between brackets:")
        for line in audit.example.splitlines():
            typer.echo(f"    {printable_line(line)}")
    if audit.shown:
        _print_spans(audit)


def _print_spans(audit: "Audit") -> None:
    """Print a line for each supervised turn: row, tokens, span, and the labels decoded."""
    from vtool.diagnostics.printable import printable

    wide = max(3, *(len(printable(shown.row)) for shown in audit.shown))
    typer.echo("  what is supervised, as tokens [start, end) and their text:")
    typer.echo(f"    {'row':<{wide}}  tokens  span")
    for shown in audit.shown:
        if shown.problem:
            problem = printable(f"{printable(shown.row):<{wide}}       -  none: {shown.problem}")
            typer.echo(f"    {problem}")
        for number, span in enumerate(shown.spans):
            row, tokens = (printable(shown.row), str(shown.tokens)) if number == 0 else ("", "")
            text = repr(span.text)
            text = (
                text
                if len(text) <= SPAN_WIDTH
                else f"{text[: SPAN_WIDTH // 2]} … {text[-SPAN_WIDTH // 2 :]}"
            )
            typer.echo(
                f"    {row:<{wide}}  {tokens:>6}  {f'[{span.start}, {span.end})':<12}  {text}"
            )
