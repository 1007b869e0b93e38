"""`vtool validate-config RECIPE [KEY=VALUE]…`"""

from enum import StrEnum
from typing import Annotated

import typer

from vtool.cli.formats import Format


class Trainer(StrEnum):
    """Whose recipes can be read."""

    VERL = "verl"


def validate_config(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings that take the place of the recipe's.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print every setting in force, and where it comes from, as YAML.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Build the real objects, at tiny size on the CPU, and read the settings back from them.")
    ] = False,
    trainer: Annotated[
        Trainer | None, typer.Option("--from", help="RECIPE is a file of this trainer: what means the same here is checked.")
    ] = None,
    format: Annotated[Format, typer.Option(help="How findings are printed.")] = Format.full,
) -> None:
    """Check a recipe: every setting is known, fits, and does not contradict another."""
    import sys
    from pathlib import Path

    from vtool.config.load import ASKED, effective_yaml, examine, examine_foreign
    from vtool.config.resources import opened
    from vtool.diagnostics import Findings
    from vtool.diagnostics.render import MACHINE, render
    from vtool.diagnostics.result import Result, exit_code

    if show and format in MACHINE:
        raise typer.BadParameter(f"--show prints YAML, and leaves no room for --format {format}")
    if trainer and overrides:
        raise typer.BadParameter(f"a recipe of {trainer.value} is read as it is: KEY=VALUE goes with recipes of vtool")
    if trainer and live:
        raise typer.BadParameter(f"--live builds what vtool trains; of {trainer.value}'s own objects, ask vtool.verify.live.compare there")
    loaded = None
    try:
        examined = examine_foreign(Path(recipe)) if trainer else examine(recipe, overrides or [])
    except Findings as findings:
        found = {finding.rule for finding in findings.diagnostics}
        checks = {rule: "failed" if rule in found else "not-run" for rule in ASKED}
        result = Result(recipe, "not-run", checks, findings.diagnostics)
    else:
        loaded = examined.loaded
        result = Result(recipe, "clean" if loaded else "unsafe", examined.checks, examined.findings)
    if live:
        from vtool.cli.common import reported
        from vtool.verify.live_check import check_live, not_run

        with reported("validate-config", recipe, format):
            built = check_live(loaded) if loaded else not_run()
        verdict = "unsafe" if any(finding.severity == "error" for finding in built.findings) else result.verdict
        result = Result(recipe, verdict, {**result.checks, **built.checks}, (*result.findings, *built.findings), built.details)
        if format not in MACHINE:
            for line in built.lines:
                typer.echo(line, err=show)
    if show and loaded:
        typer.echo(effective_yaml(loaded), nl=False)
    # With --show, standard output is a recipe that can be kept: vtool validate-config digits --show > mine.yaml
    render([result], format, command="validate-config", stream=sys.stderr if show else sys.stdout, locate=opened)
    raise typer.Exit(exit_code([result]))
