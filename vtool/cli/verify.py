"""`vtool verify RECIPE | ROWS-FILE [KEY=VALUE]…`"""

from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli.formats import Format

if TYPE_CHECKING:
    from vtool.diagnostics.result import Result
    from vtool.verify.rows import Audit

# What a rows file is read with when no recipe says more; its tokenizer is trained on the rows, unless model.path names a real one.
ROWS_RECIPE = "rows"
# What the audit looks for, and so reports as passed where it found nothing.
CHECKED = (
    "broken-row",
    "malformed-messages",
    "missing-image",
    "broken-image",
    "placeholder-mismatch",
    "image-token-mismatch",
    "no-assistant-turn",
    "end-token-unsupervised",
    "unstable-template",
    "control-token-in-text",
    "labels-differ-from-answers",
    "too-many-dropped-rows",
    "no-rows",
)


def verify(
    subject: Annotated[str, typer.Argument(metavar="RECIPE|ROWS-FILE", help="A recipe, or a .jsonl file of rows.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings, such as data.max_length=N.")] = None,
    format: Annotated[Format, typer.Option(help="How findings are printed.")] = Format.full,
) -> None:
    """Audit rows without training: lines, images, placeholders, labels, lengths."""
    import sys

    from vtool.cli.common import reported
    from vtool.config.load import load_run
    from vtool.diagnostics.render import MACHINE, render
    from vtool.diagnostics.result import exit_code

    with reported("verify", subject, format):
        given = list(overrides or [])
        if subject.endswith((".jsonl", ".json")):
            loaded = load_run(ROWS_RECIPE, [f"data.train=[{{format:messages,path:{_quoted(subject)}}}]", *given])
        else:
            loaded = load_run(subject, given)
        from vtool.verify.rows import audit_rows

        audits = audit_rows(loaded.run)
    results = [
        _result(subject if len(audits) == 1 else f"{subject}: data.{audit.split}", audit, loaded.run.data.max_length) for audit in audits
    ]
    if format not in MACHINE:
        for audit in audits:
            _print_ledger(audit)
    render(results, format, command="verify", stream=sys.stdout)
    raise typer.Exit(exit_code(results))


def _result(subject: str, audit: "Audit", max_length: int | None) -> "Result":
    from vtool.diagnostics.result import Result

    failed = {finding.rule for finding in audit.findings if finding.severity == "error"}
    asked = (*CHECKED, "overlong-row", "answer-cut-off")
    without_limit = ("overlong-row", "answer-cut-off") if max_length is None else ()
    checks = {rule: "failed" if rule in failed else "not-run" if rule in without_limit else "passed" for rule in asked}
    return Result(subject, "unsafe" if failed else "clean", checks, audit.findings)


def _print_ledger(audit: "Audit") -> None:
    import statistics

    ledger = audit.ledger
    rows = f"{ledger.rows} rows = {len(ledger.kept)} usable + {ledger.rows - len(ledger.kept)} not"
    typer.echo(f"data.{audit.split}: {rows}; {ledger.turns} assistant turns, {ledger.images} images, {ledger.truncated} truncated")
    if ledger.lengths:
        lengths = f"{min(ledger.lengths)} to {max(ledger.lengths)}, median {statistics.median(ledger.lengths):.0f}"
        typer.echo(f"  tokens a row: {lengths}; {ledger.supervised_tokens} of {sum(ledger.lengths)} supervised")
    for dropped in ledger.dropped:
        typer.echo(f"  dropped {dropped.row}: {dropped.rule}")
    if audit.example:
        typer.echo("  the first usable row as the model reads it, ⟦supervised⟧ between brackets:")
        for line in audit.example.splitlines():
            typer.echo(f"    {line}")


def _quoted(path: str) -> str:
    """A path as a value that the override grammar takes whole."""
    return "'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'"
