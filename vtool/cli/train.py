"""The command `vtool train sft RECIPE [KEY=VALUE]…`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from vtool.cli import complete
from vtool.cli.command import LongCommand
from vtool.cli.startup import no_collections

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vtool.config.load import Loaded


_OTHER_TRAINING = frozenset(
    ("pretrain", "pt", "cpt", "dpo", "kto", "orpo", "cpo", "simpo", "rm", "reward", "ppo", "grpo")
)
_NO_MODEL = (
    "model.path is not given: this trains a tiny model with random weights, to see that all works;"
    " model.path=FOLDER fine-tunes yours"
)


class TrainGroup(TyperGroup):
    """The group `vtool train`, which is often given the recipe itself."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is meant, or say how a recipe is trained."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            import shlex

            meant = f"vtool train sft {shlex.join(args)}"
            if args[0] == "sweep":
                meant = "a sweep is vtool train sft RECIPE -m KEY=A,B, one run for each value"
            elif args[0] in _OTHER_TRAINING:
                meant = (
                    "supervised fine-tuning alone is built, `vtool train sft`; of other trainers"
                )
                meant += ", `vtool watch` shows what they teach"
            ctx.fail(f"there is no command train {args[0]}: {meant}")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=TrainGroup, no_args_is_help=True, help="Train a model.")


@app.callback()
def train() -> None:
    """Train a model."""


@app.command(
    cls=LongCommand,
    short_help="Fine-tune a vision-language model on rows, or resume a run.",
)
def sft(
    recipe: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.rows_or_recipe,
            metavar="RECIPE|ROWS",
            help="A recipe's name, a YAML file, or a file or a folder of rows.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete.overrides,
            metavar="KEY=VALUE",
            help="Settings that take the place of the recipe's.",
        ),
    ] = None,
    nproc: Annotated[
        int | None,
        typer.Option(
            "--nproc",
            metavar="N",
            min=1,
            help="Number of processes on this machine (launch.nproc).",
        ),
    ] = None,
    no_preflight: Annotated[
        bool,
        typer.Option(
            "--no-preflight", help="Skip the proofs before training; the run's folder records that."
        ),
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Audit every row again: do not reuse earlier audits of unchanged rows."
        ),
    ] = False,
    multirun: Annotated[
        bool,
        typer.Option(
            "--multirun",
            "-m",
            help="Train one run for each combination of KEY=A,B, one after the other.",
        ),
    ] = False,
) -> None:
    """Fine-tune a vision-language model on rows of messages, or resume a run that was stopped."""
    import shlex

    with no_collections():
        from vtool.cli.common import exit_on_findings
        from vtool.config.adapter_rate import chosen_rate
        from vtool.config.environment.packages import require_training
        from vtool.config.load import effective_yaml, load_run
        from vtool.config.rows_recipe import names_rows
        from vtool.diagnostics import Findings
        from vtool.hub.download import download_absent
        from vtool.launchers import is_first

    given = [*(overrides or []), *([f"launch.nproc={nproc}"] if nproc else [])]
    options = [*["--no-preflight"] * no_preflight, *["--fresh"] * fresh]
    if multirun:
        from vtool.cli.sweep import run_sweep

        with exit_on_findings("train sft", recipe):
            raise typer.Exit(run_sweep(recipe, given, options))
    stopped = "stopped; the same command continues it, from the last checkpoint if there is one"
    with exit_on_findings("train sft", recipe, stopped=stopped):
        settings = [*given, *["data.audit_cache=renew"] * fresh]
        try:
            loaded = load_run(recipe, settings)
        except Findings as findings:
            if not download_absent(findings.diagnostics, lambda line: typer.echo(line, err=True)):
                raise
            loaded = load_run(recipe, settings)
        require_training("vtool train")
        _check_processes(loaded)
        if names_rows(recipe) and loaded.run.model.starts_from == "random" and is_first():
            typer.echo(_NO_MODEL, err=True)
        if is_first() and (chosen := chosen_rate(loaded.origins)):
            typer.echo(chosen, err=True)
        for note in loaded.notes if is_first() else ():
            typer.echo(f"{note.severity}[{note.rule} {note.code}]: {note.message}", err=True)
        # The command that continues this run: from its own checkpoints, not from another run's.
        kept = [key for key in given if key.lstrip("+").partition("=")[0] != "checkpoint.resume"]
        kept += [] if loaded.run.checkpoint.resume == "auto" else ["checkpoint.resume=auto"]
        kept += ["--no-preflight"] * no_preflight
        command = shlex.join(["vtool", "train", "sft", recipe, *kept])
        from vtool.training.start import check_folder

        check_folder(loaded.run, loaded.plain)
        proofs = _make_proofs(loaded, enabled=not no_preflight)
        _train(loaded, effective_yaml(loaded), command, proofs)


def _check_processes(loaded: "Loaded") -> None:
    """Refuse processes that do not fit the recipe, before it is proved for a minute.

    Raises:
        Findings: `launch-conflict`, `parallel-sizes`. Of several ranks the first one speaks for
            all, and the others exit.
    """
    from vtool.config.rules.megatron import check_shares
    from vtool.diagnostics import Findings
    from vtool.launchers import check_launch, is_first, wait_for_first

    try:
        launch = check_launch(loaded.run.launch.nproc)
        world = launch.world if launch else loaded.run.launch.nproc or 1
        if found := list(check_shares(loaded.run, loaded.origins, world)):
            raise Findings(found)
    except Findings as findings:
        if is_first():
            raise
        wait_for_first()
        raise typer.Exit(2 if findings.fatal else 1) from None


def _make_proofs(loaded: "Loaded", *, enabled: bool) -> "Mapping[str, Any] | None":
    """Prove the recipe, and return what the run keeps of the proofs; exit where one fails."""
    from vtool.cli.common import print_findings
    from vtool.diagnostics import Findings
    from vtool.verification.preflight import preflight_record

    try:
        return preflight_record(loaded.run, enabled=enabled, say=typer.echo)
    except Findings as findings:
        print_findings(findings)
        typer.echo("nothing has been trained; --no-preflight trains anyway", err=True)
        raise typer.Exit(1) from None


def _train(
    loaded: "Loaded", config_yaml: str, command: str, proofs: "Mapping[str, Any] | None"
) -> None:
    import shlex
    import signal

    from vtool.cli.common import print_findings
    from vtool.diagnostics import Findings
    from vtool.diagnostics.printable import printable
    from vtool.launchers import is_first
    from vtool.report import write_report
    from vtool.training.launch import launch
    from vtool.training.session import RunRequest

    outcome = launch(
        RunRequest(loaded.run, loaded.plain, config_yaml, loaded.origins, proofs), print_findings
    )
    if not is_first():  # under an outer launcher, the first rank speaks for all
        return
    folder = outcome.folder
    shown = printable(str(folder))
    try:
        report = shlex.quote(str(write_report([folder], folder / "report.html")))
    except OSError as error:  # everything that took time to make is saved by now
        retry = f"vtool report {shlex.quote(str(folder))}"
        report = f"not written: {error}; free some space, then: {retry}"
    if outcome.findings:
        print_findings(Findings(outcome.findings))
    if outcome.signal is not None:
        name = signal.Signals(outcome.signal).name
        typer.echo(
            f"stopped by {name} after step {outcome.step} of {outcome.total_steps}; checkpoint"
            " saved"
        )
        typer.echo(printable(f"resume with: {command}"))
        raise typer.Exit(128 + outcome.signal)
    if outcome.status == "already finished":
        typer.echo(f"{shown} has finished its {outcome.step} steps already; nothing is left to do")
    _print_result(folder)
    typer.echo(printable(f"report: {report}"))
    if any(finding.severity == "error" for finding in outcome.findings):
        raise typer.Exit(1)


def _print_result(folder: "Path") -> None:
    from vtool.contents import read_small_json
    from vtool.diagnostics.printable import printable
    from vtool.words import plural

    result = read_small_json(folder / "result.json")
    ledger = result["ledger"]
    typer.echo(
        f"ledger: {plural(ledger['rows'], 'row')} = {ledger['rows'] - ledger['dropped']:,} kept +"
        f" {ledger['dropped']:,} dropped; {plural(ledger['distinct'], 'distinct row')} trained on,"
        f" {plural(ledger['samples'], 'sample')} ({ledger['epochs']:.2f} epochs)"
    )
    sources = ledger.get("sources", {})
    for name, gave in sources.items() if len(sources) > 1 else ():
        typer.echo(
            printable(
                f"  {name}: {gave['distinct']:,} of {gave['kept']:,} rows, {gave['samples']:,}"
                f" samples, {gave['tokens']:,} tokens"
            )
        )
    if early := result.get("stopped_early"):
        typer.echo(f"stopped early after step {early['after_step']} of {early['of_steps']}")
    if best := result.get("best"):
        taken = "exported" if best["exported"] else "damaged, so the last step is exported"
        typer.echo(f"best: step {best['step']}, {best['metric']} {best['value']:.4f}: {taken}")
    if "test_exact_match" in result:
        right = round(result["test_exact_match"] * result["test_samples"])
        typer.echo(
            f"test exact match: {result['test_exact_match']:.2%} ({right} of"
            f" {result['test_samples']}), NLL {result['test_nll']:.4f}"
        )
    typer.echo(printable(f"export: {folder / 'export'}"))
