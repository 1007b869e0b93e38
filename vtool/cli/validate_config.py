"""`vtool validate-config RECIPE [KEY=VALUE]…`"""

from typing import Annotated

import typer

from vtool.cli.formats import Format


def validate_config(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings that take the place of the recipe's.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print every setting in force, and where it comes from.")] = False,
    format: Annotated[Format, typer.Option(help="How findings are printed.")] = Format.full,
) -> None:
    """Check a recipe: every setting is known, fits, and does not contradict another."""
    import sys

    from vtool.config.load import effective_yaml, load_run
    from vtool.config.resources import opened
    from vtool.diagnostics import RULES, Findings
    from vtool.diagnostics.render import render
    from vtool.diagnostics.result import Result, exit_code

    asked = [rule.name for rule in RULES.values() if rule.code.startswith(("VT1", "VT2")) and rule.name != "launch-conflict"]
    try:
        loaded = load_run(recipe, overrides or [])
    except Findings as findings:
        could_not_run = findings.fatal
        # Cross-field rules look at a run, and without a valid schema there is none.
        schema_failed = any(finding.code.startswith("VT1") for finding in findings.diagnostics)
        missed = asked if could_not_run else [name for name in asked if schema_failed and RULES[name].code.startswith("VT2")]
        result = Result.of_findings(recipe, findings.diagnostics, asked)
        checks = {rule: "not-run" if rule in missed else state for rule, state in result.checks.items()}
        result = Result(recipe, "not-run" if could_not_run else "unsafe", checks, result.findings)
        render([result], format, command="validate-config", stream=sys.stdout, locate=opened)
        raise typer.Exit(2 if could_not_run else exit_code([result])) from None
    if show and format is not Format.json:
        typer.echo(effective_yaml(loaded), nl=False)
    render([Result.of_findings(recipe, loaded.notes, asked)], format, command="validate-config", stream=sys.stdout, locate=opened)
