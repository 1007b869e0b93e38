"""`vtool export RUN`"""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    output: Annotated[Path | None, typer.Option(help="Where to write. Default: RUN/export.")] = None,
) -> None:
    """Write a run's newest checkpoint as a Hugging Face folder, also before the run has finished."""
    from vtool.cli.common import reported

    with reported("export", str(run)):
        from vtool.training.export_run import export_run

        folder, step = export_run(run, output)
    typer.echo(f"step {step} exported to {folder}")
