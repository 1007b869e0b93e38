"""The command `vtool validate-config RECIPE… [KEY=VALUE]…`."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli import complete
from vtool.cli.formats import OutputFormat
from vtool.cli.readable_trainer import READABLE, ReadableTrainer, readable_trainer, trainers
from vtool.cli.startup import no_collections

if TYPE_CHECKING:
    from vtool.config.load import Loaded
    from vtool.diagnostics.result import Result


def validate_config(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete.recipes_and_overrides,
            metavar="RECIPE… [KEY=VALUE]…",
            help="Names of recipes, or YAML files; settings that take the place of theirs.",
        ),
    ] = None,
    multirun: Annotated[
        bool,
        typer.Option("--multirun", "-m", help="Check the recipe with each combination of KEY=A,B."),
    ] = False,
    show: Annotated[
        bool,
        typer.Option(
            "--show", help="Print every setting in force, and where it comes from, as YAML."
        ),
    ] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help=(
                "Build the real objects, at tiny size on the CPU, and read the settings back from"
                " them."
            ),
        ),
    ] = False,
    trainer: Annotated[
        ReadableTrainer | None,
        typer.Option(
            "--from",
            parser=readable_trainer,
            autocompletion=trainers,
            metavar=READABLE,
            help=(
                "RECIPE is a configuration file of this trainer: check the settings"
                " that vtool has too."
            ),
        ),
    ] = None,
    convert: Annotated[
        bool,
        typer.Option(
            "--convert", help="With --from: print the file converted to a recipe of vtool, as YAML."
        ),
    ] = False,
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print a JSON schema of recipes, for editors.")
    ] = False,
    untrusted: Annotated[
        bool,
        typer.Option(
            "--untrusted",
            help=(
                "Do not trust the recipe: read no environment variable, and no file"
                " outside of its folder and the shipped ones."
            ),
        ),
    ] = False,
    format: Annotated[
        OutputFormat, typer.Option(help="How findings are printed.")
    ] = OutputFormat.full,
) -> None:
    """Check a recipe: every setting is known, fits, and does not contradict another."""
    if json_schema:
        import json

        from vtool.config.json_schema import recipe_schema

        typer.echo(json.dumps(recipe_schema(), indent=1, ensure_ascii=False))
        return
    if not arguments:
        raise typer.BadParameter("name a recipe, or a YAML file; `vtool explain` lists the recipes")
    if untrusted:
        from vtool.config.limited import start_child

        start_child()
    with no_collections():
        from vtool.cli.common import exit_on_findings, print_and_exit
        from vtool.config.load import effective_yaml
        from vtool.diagnostics.render import MACHINE

    recipes, overrides = _split_arguments(arguments)
    _refuse_combinations(
        format,
        trainer,
        show=show,
        live=live,
        untrusted=untrusted,
        several=multirun or len(recipes) > 1,
        convert=convert,
    )
    if trainer and (overrides or multirun):
        raise typer.BadParameter(
            f"a recipe of {trainer.value} is read as it is, and KEY=VALUE goes with recipes of"
            f" vtool: `--from {trainer.value} {recipes[0]} --convert > mine.yaml` makes one"
        )
    loaded, results, live_lines = None, [], list[str]()
    with exit_on_findings("validate-config", recipes[0], format):
        for recipe in recipes:
            for subject, given in _jobs(recipe, overrides) if multirun else [(recipe, overrides)]:
                result, loaded = _check(
                    subject, recipe, given, trainer=trainer, trusted=not untrusted
                )
                if live:
                    result, lines = _add_live_check(result, loaded)
                    live_lines += lines
                results.append(result)
        if convert and trainer:
            _print_converted(recipes[0], trainer, trusted=not untrusted)
    if format not in MACHINE:
        for line in live_lines:
            typer.echo(line, err=show)
    if show and loaded:
        typer.echo(effective_yaml(loaded), nl=False)
    # With --show, standard output is a recipe to keep.
    print_and_exit(results, "validate-config", format, sys.stderr if show or convert else None)


def _print_converted(recipe: str, trainer: ReadableTrainer, *, trusted: bool) -> None:
    from pathlib import Path

    from vtool.config.foreign.convert import as_recipe
    from vtool.config.load import read_foreign

    reading = read_foreign(Path(recipe), trainer.value, trusted=trusted)
    typer.echo(as_recipe(reading, trainer.value), nl=False)


def _refuse_combinations(
    format: OutputFormat,
    trainer: ReadableTrainer | None,
    *,
    show: bool,
    live: bool,
    untrusted: bool,
    several: bool,
    convert: bool,
) -> None:
    """Refuse options that do not go together."""
    from vtool.diagnostics.render import MACHINE

    if convert and (trainer is None or show or several or format in MACHINE):
        raise typer.BadParameter(
            "--convert prints one recipe of another trainer's: --from TRAINER --convert FILE"
        )

    if show and format in MACHINE:
        raise typer.BadParameter(f"--show prints YAML, and leaves no room for --format {format}")
    if trainer and live:
        raise typer.BadParameter(
            f"--live builds what vtool trains; of {trainer.value}'s own objects, ask"
            " vtool.compare there"
        )
    if untrusted and live:
        raise typer.BadParameter(
            "--live imports what the recipe names, so not for a recipe that is --untrusted"
        )
    if show and several:
        raise typer.BadParameter("--show prints the settings of one recipe")


def _check(
    subject: str,
    recipe: str,
    overrides: Sequence[str],
    *,
    trainer: ReadableTrainer | None,
    trusted: bool,
) -> "tuple[Result, Loaded | None]":
    from pathlib import Path

    from vtool.config.load import ALWAYS_CHECKED, examine, examine_foreign
    from vtool.config.schema import Run
    from vtool.data.containers.files import unreadable_rows
    from vtool.diagnostics import Findings
    from vtool.diagnostics.result import Result

    try:
        examined = (
            examine_foreign(Path(recipe), trainer=trainer.value, trusted=trusted)
            if trainer
            else examine(recipe, overrides, trusted=trusted)
        )
    except Findings as findings:
        found = {finding.rule for finding in findings.diagnostics}
        checks = {rule: "failed" if rule in found else "not-run" for rule in ALWAYS_CHECKED}
        return Result(subject, "not-run", checks, findings.diagnostics), None
    run = examined.loaded.settings if examined.loaded and trusted and not trainer else None
    unreadable = tuple(unreadable_rows(run)) if isinstance(run, Run) else ()
    all_found = (*examined.findings, *unreadable)
    verdict = "clean" if examined.loaded and not unreadable else "unsafe"
    checks = {**examined.checks, **dict.fromkeys((one.rule for one in unreadable), "failed")}
    return (
        Result(subject, verdict, checks, all_found, examined.details),  # type: ignore[arg-type]
        examined.loaded,
    )


def _add_live_check(result: "Result", loaded: "Loaded | None") -> "tuple[Result, tuple[str, ...]]":
    """Add the check of the live objects to a result; return what it built, in words."""
    from dataclasses import replace

    from vtool.verification.live import check_live, live_not_run

    built = check_live(loaded) if loaded else live_not_run()
    failed = any(finding.severity == "error" for finding in built.findings)
    with_live = replace(
        result,
        verdict="unsafe" if failed else result.verdict,
        checks={**result.checks, **built.checks},
        findings=(*result.findings, *built.findings),
        details={**result.details, **built.details},
    )
    return with_live, built.lines


def _jobs(recipe: str, overrides: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    from vtool.config.sweep import expand_grid

    return [(" ".join([recipe, *job.swept]), job.overrides) for job in expand_grid(overrides)]


def _split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the recipes and the overrides.

    The first argument is always a recipe; a pre-commit hook names several files. One may be called
    `lr=1.yaml`: where such a file is, it is meant, and not passed over.
    """
    import os

    from vtool.config.shipped import recipe_names

    first, *others = arguments
    names = recipe_names()
    recipes = [
        each
        for each in others
        if each in names
        or (each.endswith((".yaml", ".yml")) and ("=" not in each or os.path.lexists(each)))
    ]
    return [first, *recipes], [each for each in others if each not in recipes]
