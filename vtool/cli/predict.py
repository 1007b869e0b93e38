"""The command `vtool predict MODEL|RUN [IMAGE…|ROWS]`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli import complete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vtool.diagnostics import Diagnostic
    from vtool.evaluation.subject import EvaluatedModel


def predict(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.runs,
            metavar="MODEL|RUN",
            help="A run's folder or name, an export, an adapter, or a model.",
        ),
    ],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE|ROWS",
            help=(
                "Images to ask one question about; or a file of rows, and KEY=VALUE"
                " settings to read it."
            ),
        ),
    ] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="An image file, shown before the IMAGEs; may be repeated."
        ),
    ] = None,
    video: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A video file; may be repeated, in the order in which the model is shown them.",
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help=(
                "What to ask; <image> and <video> in it mark where these are shown. Default: the"
                " question of the run's first test row."
            ),
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A system message that goes before the question."),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most tokens of an answer.")
    ] = 64,
    base: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of an adapter's base model, if it was moved."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With a file of rows: write the answers to this new file, as JSON lines.",
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="With a file of rows: number of rows in a batch; it does not change the answers.",
        ),
    ] = 8,
) -> None:
    """Ask a model about images and videos, or each row of a file; answers are greedy.

    The answer, or a line of JSON for each row, is all that goes to standard output.
    """
    from vtool.cli.common import begin_with_training, exit_on_findings, print_findings
    from vtool.config.rows_recipe import names_rows
    from vtool.diagnostics import Findings

    given = files or []
    of_rows = bool(given) and names_rows(given[0])
    asked = [name for name, one in (("--question", question), ("--system", system)) if one]
    asked += [name for name, one in (("--image", image), ("--video", video)) if one]
    if of_rows and asked:
        message = f"{given[0]} has rows, each with a question and images of its own"
        raise typer.BadParameter(message, param_hint=asked[0])
    if out is not None and not of_rows:
        message = "it is for the answers to a file of rows, and none is given"
        raise typer.BadParameter(message, param_hint="--out")
    with exit_on_findings("predict", model):
        begin_with_training("vtool predict")
        from vtool.evaluation.subject import open_model

        subject = open_model(model, base)
        if of_rows:
            found = _answer_rows(subject, given, max_new_tokens, batch, out)
            if found:
                print_findings(Findings(found), "predict", given[0])
                raise typer.Exit(1)
            return
        from vtool.diagnostics.printable import printable_text
        from vtool.diagnostics.progress import working
        from vtool.evaluation.predict import first_question, predict_subject

        images, videos = [*map(str, image or ()), *given], [*map(str, video or ())]
        text = question if question is not None else first_question(subject.given)
        _say(_asked(text, question is None, len(images), len(videos)))
        with working("answering"):
            answer = predict_subject(subject, images, text, system, max_new_tokens, videos)
    typer.echo(printable_text(answer.text))
    if answer.stopped:
        _say(f"the answer was stopped at {answer.tokens} tokens; longer: --max-new-tokens N")


def _asked(question: str, of_run: bool, images: int, videos: int) -> str:
    """Return the line that shows the question and counts its images and videos."""
    kinds = [
        f"{count} {kind}{'s' * (count > 1)}"
        for count, kind in ((images, "image"), (videos, "video"))
        if count
    ]
    whose = " (the question of the run's first test row; another: --question TEXT)" * of_run
    return f"asked, {' and '.join(kinds) or 'without an image'}: {question}{whose}"


def _answer_rows(
    subject: "EvaluatedModel",
    given: "Sequence[str]",
    max_new_tokens: int,
    batch: int,
    out: Path | None,
) -> "list[Diagnostic]":
    """Write the answers to the rows of a file, and return what is wrong with any of these."""
    import json
    from contextlib import ExitStack

    from vtool.diagnostics.progress import tick, working
    from vtool.evaluation.predict_rows import answer_rows, new_file

    found: list[Diagnostic] = []
    answered = stopped = 0
    with ExitStack() as stack:
        file = stack.enter_context(new_file(out)) if out else None
        stack.enter_context(working("answering", counts="rows"))
        for done, total, each in answer_rows(
            subject, given[0], given[1:], max_new_tokens, batch, _say
        ):
            typer.echo(json.dumps(each.as_dict()), file=file)
            found += each.findings
            answered += each.answer is not None
            stopped += each.stopped
            tick(done, total, "rows")
    where = f" written to {out}" if out else ""
    _say(f"{answered:,} answer{'s' * (answered != 1)}{where}")
    if stopped:
        _say(f"{stopped:,} of them stopped at {max_new_tokens} tokens; longer: --max-new-tokens N")
    return found


def _say(line: str) -> None:
    from vtool.diagnostics.printable import printable

    typer.echo(printable(line), err=True)
