"""`vtool verify RECIPE | ROWS-FILE [KEY=VALUE]…`"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from vtool.cli.formats import Format

if TYPE_CHECKING:
    from vtool.config.schema import Data
    from vtool.diagnostics.result import Result
    from vtool.verify.rows import Audit, Shown

# What a rows file is read with when no recipe says more; its tokenizer is trained on the rows,
# unless model.path names a real one.
ROWS_RECIPE = "rows"
# What the audit looks for, and so reports as passed where it found nothing.
CHECKED = (
    "broken-row",
    "malformed-messages",
    "missing-image",
    "broken-image",
    "missing-video",
    "broken-video",
    "too-many-frames",
    "video-decoder-missing",
    "placeholder-mismatch",
    "image-token-mismatch",
    "image-in-answer",
    "ignored-by-template",
    "no-assistant-turn",
    "end-token-unsupervised",
    "unstable-template",
    "control-token-in-text",
    "labels-differ-from-answers",
    "overlong-row",
    "answer-cut-off",
    "too-many-dropped-rows",
    "no-rows",
)
# Those that look at the split, and so are asked even where no row can be used.
OF_SPLITS = ("too-many-dropped-rows", "no-rows")
TEXT = 60  # characters of a span's text in the table
LISTED = 20  # dropped rows that are listed; the others are counted


def verify(
    subject: Annotated[
        str, typer.Argument(metavar="RECIPE|ROWS-FILE", help="A recipe, or a .jsonl file of rows.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings, such as data.max_length=N."),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(
            help="A row to show beside the first ones: its line, or its name; may be repeated."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="A proof, by its rule's name or code; may be repeated. Rows are not audited then."
        ),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast", help="What one process proves in seconds, and no audit of all rows."
        ),
    ] = False,
    full_size: Annotated[
        bool,
        typer.Option(
            "--full-size", help="Prove on the recipe's own model and weights, not on a tiny one."
        ),
    ] = False,
    format: Annotated[Format, typer.Option(help="How findings are printed.")] = Format.full,
) -> None:
    """Audit rows without training:

    lines, images, placeholders, labels, lengths. Of a recipe, prove its numbers too, on a tiny
    model.
    """
    import sys

    from vtool.cli.common import reported
    from vtool.cli.proofs import named, not_run, print_proofs, result_of
    from vtool.config.load import load_run
    from vtool.diagnostics import Findings
    from vtool.diagnostics.render import MACHINE, render
    from vtool.diagnostics.result import Result, exit_code

    with reported("verify", subject, format):
        given = list(overrides or [])
        proofs, rows_only = named(only or []), subject.endswith((".jsonl", ".json"))
        if rows_only:
            _refuse_proofs(only=bool(only), fast=fast, full_size=full_size)
            loaded = load_run(
                ROWS_RECIPE, [f"data.train=[{{format:messages,path:{_quoted(subject)}}}]", *given]
            )
        else:
            _refuse_rows(row or [], only=bool(only), fast=fast)
            loaded = load_run(subject, given)
        from vtool.verify.rows import audit_rows

        audits = [] if only or fast else audit_rows(loaded.run, row or [])
    results = [
        _result(
            subject if len(audits) == 1 else f"{subject}: data.{audit.split}",
            audit,
            loaded.run.data,
        )
        for audit in audits
    ]
    if format not in MACHINE:
        for audit in audits:
            _print_ledger(audit)
    if not rows_only:
        from vtool.verify.prove import prove
        from vtool.verify.proved import NotProvable

        about = f"{subject}: proofs" if audits else subject
        try:
            proved = prove(loaded.run, only=proofs, fast=fast, full_size=full_size)
        except Findings as findings:  # beside what the audit has found
            results.append(Result.of_findings(about, findings.diagnostics))
        except NotProvable as error:
            results.append(not_run(about, proofs, str(error)))
            if format not in MACHINE:
                typer.echo(f"proofs: not run: {error}")
        else:
            results.append(result_of(about, proved))
            if format not in MACHINE:
                print_proofs(proved)
    render(results, format, command="verify", stream=sys.stdout)
    raise typer.Exit(exit_code(results))


def _refuse_proofs(**given: bool) -> None:
    """A file of rows has no model whose numbers could be proved.

    Raises:
        Findings: `unknown-choice`.
    """
    from vtool.diagnostics import Diagnostic, Findings

    if named := [f"--{name.replace('_', '-')}" for name, on in given.items() if on]:
        message = f"{', '.join(named)}: a file of rows is audited as it is; proofs are of a recipe"
        raise Findings(
            Diagnostic("unknown-choice", message, "name a recipe whose data.train is this file"),
            fatal=True,
        )


def _refuse_rows(rows: list[str], **given: bool) -> None:
    """Where rows are not audited, none is shown.

    Raises:
        Findings: `unknown-choice`.
    """
    from vtool.diagnostics import Diagnostic, Findings

    if rows and (named := [f"--{name}" for name, on in given.items() if on]):
        message = (
            f"--row {rows[0]}: a row is shown by the audit of rows, which {' and '.join(named)}"
            " leaves out"
        )
        raise Findings(
            Diagnostic(
                "unknown-choice", message, f"ask without {' and '.join(named)}, or without --row"
            ),
            fatal=True,
        )


def _result(subject: str, audit: "Audit", settings: "Data") -> "Result":
    """The split's verdict.

    Beside its rules, `details` has `ledger` (with the tokens of each usable row) and `rows`, the
    rows shown.
    """
    from vtool.diagnostics.result import Result

    failed = {finding.rule for finding in audit.findings if finding.severity == "error"}
    reasons: dict[str, str] = {}
    if settings.max_length is None:
        reasons = dict.fromkeys(("overlong-row", "answer-cut-off"), "data.max_length is not given")
    elif settings.on_overlong != "truncate":
        reasons = {"answer-cut-off": f"data.on_overlong is {settings.on_overlong}"}
    found = failed | audit.ledger.dropped_by_rule.keys()
    found |= {"answer-cut-off", "end-token-unsupervised"} if audit.ledger.cut else set()
    # A row that cannot be read is not looked at any further: where no row got to the end, what was
    # not found was not looked for.
    missed = set() if audit.ledger.kept else set(CHECKED) - set(OF_SPLITS)
    checks = {
        rule: (
            "failed"
            if rule in found
            else "not-run"
            if rule in missed | reasons.keys()
            else "passed"
        )
        for rule in CHECKED
    }
    asked = ("reference-too-long",) if audit.split != "train" else ()
    warned = {finding.rule for finding in audit.findings}
    checks |= {
        rule: "failed" if rule in warned else "passed" if audit.ledger.kept else "not-run"
        for rule in asked
    }
    details: dict[str, Any] = {rule: {"reason": reason} for rule, reason in reasons.items()}
    details |= {
        rule: {"reason": f"rows dropped: {count}"}
        for rule, count in audit.ledger.dropped_by_rule.items()
        if rule not in failed
    }
    details["ledger"] = {**audit.ledger.as_dict(), "lengths": list(audit.ledger.lengths)}
    details["rows"] = {shown.row: _shown(shown) for shown in audit.shown}
    return Result(subject, "unsafe" if failed else "clean", checks, audit.findings, details)


def _shown(shown: "Shown") -> dict[str, Any]:
    from dataclasses import asdict

    return {
        key: value for key, value in asdict(shown).items() if key != "row" and value is not None
    }


def _print_ledger(audit: "Audit") -> None:
    import statistics

    ledger = audit.ledger
    rows = f"{ledger.rows} rows = {len(ledger.kept)} usable + {ledger.rows - len(ledger.kept)} not"
    shown = f"{ledger.images} images" + (f", {ledger.videos} videos" if ledger.videos else "")
    typer.echo(
        f"data.{audit.split}: {rows}; {ledger.turns} assistant turns, {shown}, {ledger.truncated}"
        " truncated"
    )
    if ledger.lengths:
        lengths = (
            f"{min(ledger.lengths)} to {max(ledger.lengths)}, median"
            f" {statistics.median(ledger.lengths):.0f}"
        )
        typer.echo(
            f"  tokens a row: {lengths}; {ledger.supervised_tokens} of {sum(ledger.lengths)}"
            " supervised"
        )
    if not any(finding.rule == "too-many-dropped-rows" for finding in audit.findings):
        for dropped in ledger.dropped[:LISTED]:
            typer.echo(
                f"  dropped, as data.max_dropped_rows allows: {dropped.message} ({dropped.rule})"
            )
        if len(ledger.dropped) > LISTED:
            typer.echo(f"  … and {len(ledger.dropped) - LISTED} more dropped rows")
    if audit.example:
        typer.echo("  the first usable row as the model reads it, ⟦supervised⟧ between brackets:")
        for line in audit.example.splitlines():
            typer.echo(f"    {line}")
    if audit.shown:
        _print_spans(audit)


def _print_spans(audit: "Audit") -> None:
    """A line for each supervised turn:

    the row, its tokens, the span in them, and its labels decoded.
    """
    wide = max(3, *(len(shown.row) for shown in audit.shown))
    typer.echo("  what is supervised, as tokens [start, end) and their text:")
    typer.echo(f"    {'row':<{wide}}  tokens  span")
    for shown in audit.shown:
        if shown.problem:
            typer.echo(f"    {shown.row:<{wide}}       -  none: {shown.problem}")
        for number, span in enumerate(shown.spans):
            row, tokens = (shown.row, str(shown.tokens)) if number == 0 else ("", "")
            text = repr(span.text)
            text = text if len(text) <= TEXT else f"{text[: TEXT // 2]} … {text[-TEXT // 2 :]}"
            typer.echo(
                f"    {row:<{wide}}  {tokens:>6}  {f'[{span.start}, {span.end})':<12}  {text}"
            )


def _quoted(path: str) -> str:
    """A path as a value that the override grammar takes whole."""
    return "'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'"
