"""`vtool validate-config RECIPE [KEY=VALUE]…`"""

from typing import Annotated

import typer

from vtool.cli.formats import Format


def validate_config(
    recipe: Annotated[str | None, typer.Argument(metavar="RECIPE", help="A recipe's name, or a YAML file.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings that take the place of the recipe's.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print every setting in force, and where it comes from, as YAML.")] = False,
    json_schema: Annotated[bool, typer.Option("--json-schema", help="Print a JSON schema of recipes, for editors.")] = False,
    format: Annotated[Format, typer.Option(help="How findings are printed.")] = Format.full,
) -> None:
    """Check a recipe: every setting is known, fits, and does not contradict another."""
    import sys

    if json_schema:
        import json

        from vtool.config.json_schema import recipe_schema

        typer.echo(json.dumps(recipe_schema(), indent=1, ensure_ascii=False))
        return
    if recipe is None:
        raise typer.BadParameter("name a recipe, or a YAML file; `vtool explain` lists the recipes")
    from vtool.config.load import ASKED, effective_yaml, examine
    from vtool.config.resources import opened
    from vtool.diagnostics import Findings
    from vtool.diagnostics.render import MACHINE, render
    from vtool.diagnostics.result import Result, exit_code

    if show and format in MACHINE:
        raise typer.BadParameter(f"--show prints YAML, and leaves no room for --format {format}")
    loaded = None
    try:
        examined = examine(recipe, overrides or [])
    except Findings as findings:
        found = {finding.rule for finding in findings.diagnostics}
        checks = {rule: "failed" if rule in found else "not-run" for rule in ASKED}
        result = Result(recipe, "not-run", checks, findings.diagnostics)
    else:
        loaded = examined.loaded
        result = Result(recipe, "clean" if loaded else "unsafe", examined.checks, examined.findings, examined.details)
    if show and loaded:
        typer.echo(effective_yaml(loaded), nl=False)
    # With --show, standard output is a recipe that can be kept: vtool validate-config digits --show > mine.yaml
    render([result], format, command="validate-config", stream=sys.stderr if show else sys.stdout, locate=opened)
    raise typer.Exit(exit_code([result]))
