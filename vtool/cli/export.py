"""The command `vtool export RUN`."""

from pathlib import Path
from typing import Annotated

import typer

from vtool.cli import complete


def export(
    run: Annotated[
        Path,
        typer.Argument(autocompletion=complete.runs, metavar="RUN", help="A run's folder or name."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder to write to. Default: RUN/export; with --merge, RUN/merged.",
        ),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="For a run with LoRA: write the whole model, with the adapter merged in.",
        ),
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="NAME/REPO", help="Also push it to this repository of the Hugging Face hub."
        ),
    ] = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="With --push: if the repository is new, make it public."),
    ] = False,
) -> None:
    """Write a run's checkpoint as a Hugging Face folder, also before the run has finished.

    The best checkpoint is exported where checkpoint.keep_best is set, else the newest. For a run
    with LoRA, its adapter is written.
    """
    from vtool.cli.common import begin_with_training, exit_on_findings
    from vtool.diagnostics.printable import printable
    from vtool.diagnostics.progress import working

    if public and push is None:
        raise typer.BadParameter("it is for --push", param_hint="--public")
    with exit_on_findings("export", str(run)):
        begin_with_training("vtool export")
        from vtool.report.found_runs import find_run
        from vtool.training.export_run import about_export, export_run

        run = find_run(run)
        with working("exporting the model"):
            folder, step = export_run(run, output, merge=merge)
        typer.echo(printable(f"step {step} exported to {folder}"))
        for note in about_export(run, folder, merge=merge):
            head = f"{note.severity}[{note.rule} {note.code}]: {note.message}"
            typer.echo(printable(head), err=True)
            typer.echo(printable(f"  help: {note.remedy}"), err=True)
        if push is not None:
            from vtool.hub.push import push as send

            with working(f"sending {folder}"):
                where = send(folder, push, public=public)
            typer.echo(printable(f"sent to {where}"))
