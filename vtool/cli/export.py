"""The command `vtool export RUN`."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    output: Annotated[
        Path | None, typer.Option(help="Where to write. Default: RUN/export, or RUN/merged.")
    ] = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="Of a run with lora, write the whole model with the adapter merged in."
        ),
    ] = False,
) -> None:
    """Write a run's checkpoint as a Hugging Face folder, also before the run has finished.

    It is the best one where checkpoint.keep_best is set, else the newest. Of a run with lora, write
    its adapter.
    """
    from vtool.cli.common import begin_with_training, exit_on_findings
    from vtool.diagnostics.printable import printable
    from vtool.diagnostics.progress import working

    with exit_on_findings("export", str(run)):
        begin_with_training("vtool export")
        from vtool.training.export_run import export_run

        with working("exporting the model"):
            folder, step = export_run(run, output, merge=merge)
    typer.echo(printable(f"step {step} exported to {folder}"))
