"""The command `vtool predict RUN --image FILE`."""

from pathlib import Path
from typing import Annotated

import typer


def predict(
    run: Annotated[
        Path, typer.Argument(help="A run's folder, or a Hugging Face folder that vtool exported.")
    ],
    image: Annotated[
        list[Path] | None,
        typer.Option(
            help="An image file. Repeat it for several, in the order in which they are shown."
        ),
    ] = None,
    video: Annotated[
        list[Path] | None,
        typer.Option(
            help="A video file. Repeat it for several, in the order in which they are shown."
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            help=(
                "What to ask; <image> and <video> in it mark where these are shown. Default: the"
                " question of the run's first test row."
            )
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="A system message that goes before the question.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The longest answer, in tokens.")] = 64,
) -> None:
    """Ask the trained model about an image or a video."""
    from vtool.cli.common import begin_with_training, exit_on_findings

    with exit_on_findings("predict", str(run)):
        begin_with_training("vtool predict")
        from vtool.evaluation.predict import predict as ask

        images, videos = ([str(path) for path in files or []] for files in (image, video))
        answer = ask(run, images, question, system, max_new_tokens, videos)
    typer.echo(answer)
