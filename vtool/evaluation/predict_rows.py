"""Answer every row of a file: a line of JSON for each, whether or not it could be asked."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from vtool.config.schema import Data
from vtool.data.encode import Prompt
from vtool.data.outside import check_root
from vtool.data.row import Row, refuse, texts_of
from vtool.data.sources import Rows
from vtool.data.turns import prepare_rows
from vtool.diagnostics import Diagnostic, Findings
from vtool.evaluation.asker import Asker, PromptReader
from vtool.evaluation.evaluate import chunks
from vtool.evaluation.rows import load_settings
from vtool.evaluation.subject import EvaluatedModel, with_own_reading


@dataclass(frozen=True, slots=True)
class Answered:
    """A row with the model's answer, or with what keeps it from being asked."""

    row: str
    question: str = ""
    answer: str | None = None
    tokens: int = 0
    stopped: bool = False
    """The answer had reached the longest that was asked for."""
    reference: str | None = None
    """The answer that the row has itself."""
    images: tuple[str, ...] = ()
    findings: tuple[Diagnostic, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the line's keys and values; those that say nothing are left out."""
        if self.findings:
            return {"row": self.row, "answer": None, "error": self.findings[0].message}
        values = asdict(self)
        del values["findings"]
        return {key: value for key, value in values.items() if value not in (None, ())}


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A row that is cut off before its last answer."""

    row: Row
    prompt: Prompt
    reference: str | None


def answer_rows(
    subject: EvaluatedModel,
    rows: str,
    given: Sequence[str],
    max_new_tokens: int,
    batch_size: int,
    say: Callable[[str], object],
) -> Iterator[tuple[int, int, Answered]]:
    """Yield a model's answers to the rows of a file or a folder, in their order.

    Each comes with how many there are so far, and in the end.

    A row that ends with an answer is asked what is before it.

    Args:
        subject: the model.
        rows: a path, in any format that can be detected, or that `given` names.
        given: settings, such as those of the images' sizes.
        max_new_tokens: the longest answer, in tokens.
        batch_size: the rows that are asked at once.
        say: is given a line on what happens.

    Raises:
        Findings: where no row at all can be asked; fatal.
    """
    names = {one.lstrip("+~").partition("=")[0] for one in given}
    data = with_own_reading(load_settings(rows, given), subject.run, names).data
    if other := subject.other_prompt(data):
        say(other)
    opened = Rows(data.train, allow_urls=data.allow_urls)
    reader, count = PromptReader.of(subject, data), len(opened.taken())
    prepare_rows(opened, reader.processor, data)
    say(f"{rows}: {count:,} row{'s' * (count != 1)}; loading {subject.in_words()}")
    asker = reader.load()
    size = batch_size if asker.at_once else 1
    done = 0
    for batch in chunks(opened.taken(), size):
        read = [_read(opened, index, reader, data) for index in batch]
        for answered in _answer(asker, read, max_new_tokens):
            done += 1
            yield done, count, answered


def _read(rows: Rows, index: int, reader: PromptReader, data: Data) -> _Waiting | Answered:
    try:
        row, reference = waiting(rows.row(index))
        if data.root is not None:
            check_root(row, data.root)
        return _Waiting(row, reader.prompt(row), reference)
    except Findings as findings:
        return Answered(rows.name(index), findings=findings.diagnostics)


def _answer(
    asker: Asker, read: Sequence[_Waiting | Answered], max_new_tokens: int
) -> Iterator[Answered]:
    prompts = [each.prompt for each in read if isinstance(each, _Waiting)]
    answers = iter(asker.answer(prompts, max_new_tokens) if prompts else ())
    for each in read:
        if isinstance(each, Answered):
            yield each
            continue
        row, answer = each.row, next(answers)
        yield Answered(
            row.id,
            " ".join(texts_of(row.messages[-1])),
            answer.text,
            answer.tokens,
            answer.stopped,
            each.reference,
            tuple(one for one in row.images if isinstance(one, str) and one[:5] != "data:"),
        )


def waiting(row: Row) -> tuple[Row, str | None]:
    """Return a row that waits for its last answer, with the images before it, and that answer.

    Raises:
        Findings: `malformed-messages`.
    """
    if row.messages[-1]["role"] != "assistant":
        return row, None
    if len(row.messages) == 1:
        raise refuse("malformed-messages", f"{row.id} has an answer to no question", row.origin)
    asked = replace(row, messages=row.messages[:-1])
    shown = list(asked.visuals())
    reference = " ".join(texts_of(row.messages[-1]))
    images, videos = row.images[: shown.count("image")], row.videos[: shown.count("video")]
    return replace(asked, images=images, videos=videos), reference


@contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """Open a file that is not there yet, for answers; an empty one is removed again.

    Raises:
        Findings: `run-folder-unwritable`; fatal.
    """
    try:
        file = path.open("x", encoding="utf-8")
    except OSError as error:
        message = f"{path}: {error.strerror}"
        help = "name a file that does not exist yet: --out FILE"
        raise Findings(Diagnostic("run-folder-unwritable", message, help), fatal=True) from error
    try:
        with file:
            yield file
    finally:
        if not path.stat().st_size:
            path.unlink()
