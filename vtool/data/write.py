"""Write rows: JSON lines, Parquet or Arrow in the layout `messages`, each read back as it was."""

import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vtool.data.containers.columns import from_columns, pyarrow
from vtool.data.messages_layout import parse_row
from vtool.data.row import Row, RowVideo
from vtool.diagnostics import Origin

GROUP_ROWS, GROUP_BYTES = 1000, 2**26
"""The rows, and the bytes of their pictures, after which a group of rows is written."""
_MARKS = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG": "png",
    b"GIF8": "gif",
    b"RIFF": "webp",
    b"BM": "bmp",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
}
_TEXTS = ("name", "tool_call_id", "reasoning_content")
"""Keys of a message, besides its role and content, that have a column of text."""


class Lossy(ValueError):
    """A row would not be read back as it was."""


class RowWriter(Protocol):
    """A file that rows are written to, one after the other."""

    def record(self, row: Row, folder: Path) -> dict[str, Any]:
        """Return a row as it is written to a file in this folder.

        Raises:
            Lossy: it would not be read back as it was.
        """

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a row."""

    def close(self) -> None:
        """Write what is left, and close the file."""


class LinesWriter:
    """Rows as JSON, one in each line. Pictures that are inside of rows stay there, in base64."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("x", encoding="utf-8")

    def record(self, row: Row, folder: Path) -> dict[str, Any]:
        made = {
            "messages": [_joined(message) for message in row.messages],
            **({"images": [_address(each, folder) for each in row.images]} if row.images else {}),
            **({"videos": [_video(each, folder) for each in row.videos]} if row.videos else {}),
            **({"tools": row.tools} if row.tools is not None else {}),
            **({"enable_thinking": row.thinking} if row.thinking is not None else {}),
        }
        if not _same(row, made, folder):  # parts that text with tags does not give back
            made["messages"] = [dict(message) for message in row.messages]
        if not _same(row, made, folder):
            raise Lossy("it is read back as another row")
        return made

    def write(self, record: Mapping[str, Any]) -> None:
        self.file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self.file.close()


class ColumnsWriter:
    """Rows in Parquet or Arrow, in groups that are small enough to be read for one row."""

    def __init__(self, path: Path, kind: str) -> None:
        self.arrow = pyarrow("pyarrow", path)
        self.schema = _schema(self.arrow)
        self.file = path.open("xb")
        if kind == "parquet":
            self.writer = pyarrow("pyarrow.parquet", path).ParquetWriter(self.file, self.schema)
        else:
            self.writer = self.arrow.ipc.new_file(self.file, self.schema)
        self.rows: list[Mapping[str, Any]] = []
        self.bytes = 0

    def record(self, row: Row, folder: Path) -> dict[str, Any]:
        made: dict[str, Any] = {
            "messages": [_columns(_joined(message)) for message in row.messages],
            "images": [_carried(each, folder) for each in row.images] or None,
            "videos": [_video_columns(each, folder) for each in row.videos] or None,
            "tools": None if row.tools is None else json.dumps(row.tools, ensure_ascii=False),
            "enable_thinking": row.thinking,
        }
        table = self.arrow.Table.from_pylist([made], schema=self.schema)
        read = from_columns(table.to_pylist()[0], row.id, row.origin or Origin(row.id))
        if not _same(row, read, folder):
            raise Lossy(
                "its content is a list of parts that text with tags does not give back, and a"
                " column cannot have text and parts: write JSON lines"
            )
        return made

    def write(self, record: Mapping[str, Any]) -> None:
        self.rows.append(record)
        self.bytes += sum(len(each["bytes"] or b"") for each in record["images"] or ())
        if len(self.rows) == GROUP_ROWS or self.bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        with self.file:
            if self.rows:
                self._flush()
            self.writer.close()

    def _flush(self) -> None:
        self.writer.write_table(self.arrow.Table.from_pylist(self.rows, schema=self.schema))
        self.rows, self.bytes = [], 0


def open_writer(path: Path, kind: str) -> RowWriter:
    """Open a new file of rows: `jsonl`, `parquet` or `arrow`.

    Raises:
        OSError: it is there, or cannot be made.
        Findings: `extra-not-installed`.
    """
    return LinesWriter(path) if kind == "jsonl" else ColumnsWriter(path, kind)


def _same(row: Row, record: Mapping[str, Any], folder: Path) -> bool:
    """Return whether a written row is read as the same chat."""
    again = parse_row(record, row.id, folder, row.origin)
    return (
        list(again.messages) == list(row.messages)
        and (again.tools or None) == (row.tools or None)
        and again.thinking == row.thinking
        and len(again.images) == len(row.images)
        and [_shape(video) for video in again.videos] == [_shape(video) for video in row.videos]
    )


def _shape(video: RowVideo) -> tuple[int, float | None]:
    return (-1 if isinstance(video.source, str) else len(video.source)), video.fps


def _joined(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose parts are one text, with a tag for each image and video."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    texts = (part["text"] if part["type"] == "text" else f"<{part['type']}>" for part in content)
    return {**message, "content": "".join(texts)}


def _columns(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with the keys that there are columns for.

    Raises:
        Lossy: it has another one.
    """
    made: dict[str, Any] = {}
    for key, value in message.items():
        if value is None:
            continue
        if key == "tool_calls":
            made[key] = json.dumps(value, ensure_ascii=False)
        elif (key in ("role", "content", *_TEXTS) and isinstance(value, str)) or key == "weight":
            made[key] = value
        else:
            raise Lossy(f'a message has "{key}", for which there is no column: write JSON lines')
    return made


def _schema(arrow: Any) -> Any:
    text = arrow.string()
    message = [(key, text) for key in ("role", "content", "tool_calls", *_TEXTS)]
    image = arrow.struct([("bytes", arrow.binary()), ("path", text)])
    video = arrow.struct([("video", arrow.list_(text)), ("path", text), ("fps", arrow.float64())])
    return arrow.schema(
        [
            ("messages", arrow.list_(arrow.struct([*message, ("weight", arrow.int8())]))),
            ("images", arrow.list_(image)),
            ("videos", arrow.list_(video)),
            ("tools", text),
            ("enable_thinking", arrow.bool_()),
        ]
    )


def _address(image: Any, folder: Path) -> str:
    """Return an image's path, or the `data:` address that carries it."""
    if not isinstance(image, bytes):
        return _relative(str(image), folder)
    kind = next((name for mark, name in _MARKS.items() if image.startswith(mark)), "unknown")
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def _carried(image: Any, folder: Path) -> dict[str, Any]:
    if isinstance(image, bytes):
        return {"bytes": image, "path": None}
    return {"bytes": None, "path": _relative(str(image), folder)}


def _video(video: RowVideo, folder: Path) -> Any:
    source = _source(video, folder)
    return source if video.fps is None else {"video": source, "fps": video.fps}


def _video_columns(video: RowVideo, folder: Path) -> dict[str, Any]:
    source = _source(video, folder)
    frames, path = (None, source) if isinstance(source, str) else (source, None)
    return {"video": frames, "path": path, "fps": video.fps}


def _source(video: RowVideo, folder: Path) -> str | Sequence[str]:
    if isinstance(video.source, str):
        return _relative(video.source, folder)
    return [_relative(str(frame), folder) for frame in video.source]


def _relative(path: str, folder: Path) -> str:
    """Return a path as a file in this folder says it; a whole one stays."""
    if path.startswith("data:") or os.path.isabs(path):
        return path
    return os.path.relpath(path, folder)
