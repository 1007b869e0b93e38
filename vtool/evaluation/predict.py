"""Ask a trained model a question about images and videos."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from vtool.contents import read_lines
from vtool.data.messages_layout import TAG, VIDEO_TAG, parse_row
from vtool.data.row import Row
from vtool.diagnostics import Diagnostic, Findings
from vtool.evaluation.asker import GreedyAnswer, PromptReader
from vtool.evaluation.subject import EvaluatedModel, open_model

_TYPED = dict.fromkeys(
    ("missing-image", "missing-video"), "paths are relative to the folder you are in"
) | {
    "broken-image": "name a file that is an image, and whole",
    "broken-video": "name a file that is a video, and whole",
}
"""Help for files that were typed: there is no row that could be corrected."""


def predict_answer(
    run: Path,
    images: Sequence[str],
    question: str | None,
    system: str | None,
    max_new_tokens: int,
    videos: Sequence[str] = (),
) -> GreedyAnswer:
    """Return the greedy answer of a run's export, or of an exported folder.

    Images and videos go where the texts have their <image> and <video> tags; without any tag,
    before the question. The model is given the inputs that it was trained with.

    Raises:
        Findings: as `open_model`; `modeling-changed`, `beyond-context`, and what is wrong with the
            images and texts (VT6xx).
    """
    subject = open_model(str(run))
    text = question if question is not None else first_question(run)
    return predict_subject(subject, images, text, system, max_new_tokens, videos)


def predict_subject(
    subject: EvaluatedModel,
    images: Sequence[str],
    text: str,
    system: str | None,
    max_new_tokens: int,
    videos: Sequence[str] = (),
) -> GreedyAnswer:
    """Return the greedy answer of a model that was found before; `predict_answer` says the rest.

    Raises:
        Findings: as `predict_answer`.
    """
    with of_typed_files():
        reader = PromptReader.of(subject)
        prompt = reader.prompt(question_row({TAG: images, VIDEO_TAG: videos}, text, system))
    (answer,) = reader.load().answer([prompt], max_new_tokens)
    return answer


@contextmanager
def of_typed_files() -> Iterator[None]:
    """Make findings on what was typed fatal: there is nothing else to be answered."""
    try:
        yield
    except Findings as findings:
        with_help = [
            replace(one, help=_TYPED.get(one.rule, one.help)) for one in findings.diagnostics
        ]
        raise Findings(with_help, fatal=True) from findings


def question_row(shown: Mapping[str, Sequence[str]], question: str, system: str | None) -> Row:
    """Build the row of a question, as a rows file would be read.

    Args:
        shown: files by the tag that stands for them.
        question: the text, with or without tags.
        system: a system message before it.

    Raises:
        Findings: what is wrong with the texts and files (VT6xx).
    """
    asked = question
    for tag, files in reversed(list(shown.items())):
        tags = question.count(tag) + (system or "").count(tag)
        if tags and tags != len(files):
            kind = tag[1:-1]
            message = (
                f"the texts have {tags} {tag} tag{'s' * (tags > 1)}, and the number of {kind}s is"
                f" {len(files)}"
            )
            raise Findings(
                Diagnostic(
                    "placeholder-mismatch",
                    message,
                    help=f"give one {kind} for each tag, or leave the tags out",
                )
            )
        asked = asked if tags else tag * len(files) + asked
    messages = [
        *([{"role": "system", "content": system}] if system is not None else []),
        {"role": "user", "content": asked},
    ]
    return parse_row(
        {"messages": messages, **{f"{tag[1:-1]}s": list(files) for tag, files in shown.items()}},
        "the question",
        Path(),
    )


def first_question(run: Path) -> str:
    """Return the question of a run's first test row.

    Raises:
        Findings: `not-a-run`; fatal.
    """
    try:
        return str(json.loads(next(read_lines(run / "predictions.jsonl")))["question"])
    except (StopIteration, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{run} has no test question to ask again"
        raise Findings(
            Diagnostic("not-a-run", message, help="say what to ask: --question TEXT"), fatal=True
        ) from error
