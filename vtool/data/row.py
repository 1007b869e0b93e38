"""A row: one chat with its images and videos, whatever file it came from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import Repr
from typing import Any, ClassVar, Protocol

from vtool.diagnostics import Diagnostic, Findings, Origin


class _InJson(Repr):
    """Short texts of values, in which null, true and false are called what JSON calls them."""

    def repr_NoneType(self, value: None, level: int) -> str:  # noqa: N802 (the type's name)
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:
        return "true" if value else "false"


_SHORT = _InJson()
_SHORT.maxstring = _SHORT.maxother = 80


@dataclass(frozen=True, slots=True)
class RowVideo:
    """A video: a file, or its frames."""

    source: str | tuple[Any, ...]
    """A file's path, or frames: each a path or a picture in memory."""
    fps: float | None = None
    """Frames a second: shown of a file, or had by a list; None means `data.video.fps`."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark about a row that can be used, which is counted for a whole split."""

    rule: str
    words: str
    """Such as `"notes" of a message`."""
    key: str = ""
    """The key of a message that it is about, which the model's chat template may read."""


@dataclass(frozen=True, slots=True)
class Row:
    """One chat.

    `messages` is what the chat template is given: each image is a part `{"type": "image"}`, and
    `images` has them in that order, each a path or a picture in memory (anything that
    `transformers.image_utils.load_image` takes); each video is a part `{"type": "video"}`, and
    `videos` has them in that order.
    """

    id: str
    messages: Sequence[Mapping[str, Any]]
    images: Sequence[Any]
    tools: Sequence[Any] | None = None
    origin: Origin | None = field(default=None)
    videos: Sequence[RowVideo] = ()
    given_id: str = ""
    """The id that its file gives it; it may give the same to another row."""
    folder: str | None = None
    """The folder that paths of its images and videos are relative to."""
    thinking: bool | None = None
    """The argument `enable_thinking` that verl gives the chat template for it; None for none."""
    group: int | None = None
    """The group that `data.split.group` or the format puts it into; None: its content decides."""
    remarks: Sequence[Remark] = ()

    def texts(self) -> Iterator[str]:
        """Yield the text of every message."""
        for message in self.messages:
            yield from texts_of(message)

    def visuals(self, turns: int | None = None) -> Iterator[str]:
        """Yield `image` or `video` for each of them, in the order in which they are shown.

        Args:
            turns: the first messages to look at; None: all.
        """
        for message in self.messages[:turns]:
            content = message.get("content")
            if isinstance(content, list):
                yield from (
                    part["type"] for part in content if part.get("type") in ("image", "video")
                )

    def supervised(self) -> Iterator[int]:
        """Yield the places of the assistant's messages that are learnt; weight 0 is not."""
        for place, message in enumerate(self.messages):
            if message["role"] == "assistant" and message.get("weight") != 0:
                yield place


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """Return a message's own text: its content, or that of its text parts."""
    content = message.get("content")
    return (
        [content]
        if isinstance(content, str)
        else [part["text"] for part in content or () if part.get("type") == "text"]
    )


class RowReader(Protocol):
    """The rows of one entry, by their number. Readers are pickled into data workers."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Return the id of row `index`, without reading it."""

    def row(self, index: int) -> Row:
        """Return row `index`.

        Raises:
            Findings: VT601 to VT605 and VT640, where the row cannot be understood.
        """

    def describe(self) -> dict[str, Any]:
        """Return the facts that identify these rows: format, and a file's path, digest and rows."""


class FormatReader(RowReader, Protocol):
    """The reader of a format of rows, which is listed in `vtool.data.formats`."""

    format: ClassVar[str]

    @classmethod
    def open(cls, entry: Any, label: str | None, **more: Any) -> RowReader:
        """Open an entry's rows.

        Args:
            entry: the settings of this format.
            label: the beginning of its rows' names, where two files of a split have one name.
            more: what else a `ChatReader` takes.

        Raises:
            Findings: what cannot be opened.
        """


def refuse(
    rule: str,
    message: str,
    origin: Origin | None,
    *,
    parameter: str | None = None,
    help: str | None = None,
) -> Findings:
    """Return the exception for one thing that is wrong with one row."""
    return Findings(Diagnostic(rule, message, origin=origin, parameter=parameter, help=help))


def name_by_number(label: str, number: int) -> str:
    """Return the name of a row of a file whose rows are no lines, by its number from 1.

    A line of a file is `label:number`; this is written otherwise, so that nobody looks there.
    """
    return f"{label} row {number}"


def short_names(name: str) -> set[str]:
    """Return a row's name, and what it has behind the file's: a line, a number or a key."""
    return {name, name.rpartition(":")[2], name.rpartition(" row ")[2]}


def shown_value(value: object) -> str:
    """Return a value of a row as text short enough for a message."""
    text = str(value) if isinstance(value, Exception) else _SHORT.repr(value)
    return text if len(text) <= 160 else text[:160] + "…"


def media_path(folder: Path, path: str) -> Path:
    """Return the path of an image or a video, given relative to the folder of the rows file."""
    return folder / path.removeprefix("file://")
