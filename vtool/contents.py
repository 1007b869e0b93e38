"""The content of a file by its first bytes, whatever its name says."""

import errno
import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from stat import S_ISREG
from typing import Any

HEAD = 4096
"""Bytes at the beginning of a file by which its content is known."""
_LARGEST_ANSWER = 2**16
"""Bytes of an answer of a server that is read: what is longer is data."""
LARGEST_SMALL_FILE = 2**27
"""Bytes of a JSON file of a model: twice what the largest tokenizers have."""
_MOST_PARTS = 2**22
"""Lists and objects of JSON; each takes thirty times its bytes in memory."""
_LARGEST_JSON = 2**26
"""Bytes of any other JSON: what it is in memory may be twenty times as many."""
_LARGEST_LINES = 2**31
"""Bytes of a file that is read a line at a time: the answers to millions of rows."""
_SHOWN = 60

_AGAIN = "fetch it again, signed in where its host asks for that"
_UNPACK = "unpack it, and name what was in it"
_MATROSKA = b"\x1a\x45\xdf\xa3"
_PICTURE_BRANDS = (b"heic", b"heix", b"mif1", b"avif")
_MARKS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PAR1", "parquet", "Parquet"),
    (0, b"ARROW1", "arrow", "Arrow"),
    # a message of Arrow's stream format begins so, as no UTF-8 text does
    (0, b"\xff\xff\xff\xff", "arrow", "Arrow"),
    (257, b"ustar", "tar", "a tar"),
    (0, b"\x1f\x8b", "packed", "packed with gzip"),
    (0, b"\x28\xb5\x2f\xfd", "packed", "packed with zstd"),
    (0, b"\xfd7zXZ\0", "packed", "packed with xz"),
    (0, b"\x04\x22\x4d\x18", "packed", "packed with lz4"),
    (0, b"7z\xbc\xaf\x27\x1c", "packed", "packed with 7-Zip"),
    (0, b"BZh", "packed", "packed with bzip2"),
    (0, b"PK\x03\x04", "packed", "packed with zip"),
    (0, b"\xff\xd8\xff", "picture", "a JPEG picture"),
    (0, b"\x89PNG\r\n\x1a\n", "picture", "a PNG picture"),
    (0, b"GIF8", "picture", "a GIF picture"),
    (8, b"WEBP", "picture", "a WebP picture"),
    (0, b"II*\0", "picture", "a TIFF picture"),
    (0, b"MM\0*", "picture", "a TIFF picture"),
    *((4, b"ftyp" + brand, "picture", "a HEIC or AVIF picture") for brand in _PICTURE_BRANDS),
    (4, b"ftyp", "video", "a video (MP4)"),
    (0, _MATROSKA, "video", "a video (Matroska)"),
    (8, b"AVI ", "video", "a video (AVI)"),
    (0, b"%PDF-", "other", "a PDF"),
    (0, b"GGUF", "other", "GGUF"),
    (0, b"\x80\x02", "other", "a pickle"),
    (0, b"\x80\x04", "other", "a pickle"),
    (0, b"\x80\x05", "other", "a pickle"),
    (0, b"\x89HDF\r\n", "other", "HDF5"),
    (0, b"\x93NUMPY", "other", "an array of numpy"),
    (0, b"SQLite format 3\0", "other", "a database of SQLite"),
)
"""An offset, the bytes there, the kind, and its name behind "is"."""
_BEFORE = {4: b"\0", 8: b"RIFF"}
"""The beginning of files that are known by bytes at these offsets."""
_WIDE_MARKS = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_WIDE = (("UTF-32LE", 4, 0), ("UTF-32BE", 4, 3), ("UTF-16LE", 2, 0), ("UTF-16BE", 2, 1))
"""Encodings without a mark: bytes a character, and which one of them ASCII has."""
_POINTERS = (
    (
        ("version https://git-lfs", "version https://hawser"),
        "a Git LFS pointer",
        "git lfs pull",
    ),
    (
        ("/annex/objects/", "../.git/annex/objects/", ".git/annex/objects/"),
        "a git-annex pointer",
        "git annex get",
    ),
    (
        ("# xet version",),
        "a Xet pointer",
        "git xet install && git lfs pull",
    ),
)
_SIZE = re.compile(r"^size (\d+)\s*$", re.MULTILINE)
_PAGE = re.compile(r"<(!doctype\s+html|html|head|body|title|script|h1|center)[\s>]", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<!--.*?-->|<[^>]*>", re.IGNORECASE | re.DOTALL)
_SAYS = ("error", "errors", "message", "detail", "msg", "error_description", "errorMessage")
_OF_ANSWERS = frozenset(
    {
        *_SAYS,
        *("code", "status", "statusCode", "status_code", "success", "ok", "type", "title", "path"),
        *("timestamp", "documentation_url", "request_id", "requestId", "RequestId", "reason"),
        *("error_code", "errorCode", "Code", "Message", "data", "url", "trace_id", "traceId"),
        *("Data", "Success"),
    }
)
"""Keys of what a server answers in the place of a file."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file, as far as its beginning shows it."""

    kind: str
    """A kind of `_MARKS`; `empty`, `pointer`, `page`, `answer`; `text` for other short text."""
    what: str
    """The content as a sentence has it behind the file's name: `is a Git LFS pointer, …`."""
    remedy: str | None = None

    @property
    def stands_in(self) -> bool:
        """Return whether the file is in the place of another one, and no reader's business."""
        return self.kind in ("empty", "pointer", "page", "answer")


def content_of(given: Path | bytes) -> Content | None:
    """Return the content of a file; None where that is not known, or it cannot be opened.

    Args:
        given: a regular file, or its whole content.
    """
    if isinstance(given, bytes):
        return _content(given[:_LARGEST_ANSWER], len(given))
    try:
        with open_regular(given) as file:
            size = given.stat().st_size
            return _content(file.read(_LARGEST_ANSWER if size <= _LARGEST_ANSWER else HEAD), size)
    except (OSError, ValueError):
        return None


def wide_encoding(head: bytes) -> str | None:
    """Return the encoding of text of two or four bytes a character; None for any other file.

    It is known by its mark; without one, by the zeros of a first word of ASCII.
    """
    for mark, name in _WIDE_MARKS:
        if head.startswith(mark):
            return name
    for name, width, place in _WIDE:
        first = head[: 4 * width]
        alike = all(bool(byte) == (at % width == place) for at, byte in enumerate(first))
        if len(first) == 4 * width and alike:
            return name
    return None


def stand_in(given: Path | bytes) -> Content | None:
    """Return the content of a file that is in the place of another one; None for any other."""
    found = content_of(given)
    return found if found is not None and found.stands_in else None


def _content(head: bytes, size: int) -> Content | None:
    return _nothing(head, size) or _format(head) or _text(head, size)


def _nothing(head: bytes, size: int) -> Content | None:
    if not size:
        return Content("empty", "is empty, of 0 bytes", "fetch it again, or write it again")
    if head.strip(b"\0"):
        return None
    what = f"has {size:,} bytes, and the first {len(head):,} are zero: it was never written"
    return Content("empty", what, "fetch it again: an interrupted copy leaves such a file")


def _format(head: bytes) -> Content | None:
    if head.startswith(b"PK\x03\x04") and b"/data.pkl" in head[:128]:
        return Content("other", "is a file of torch.save, a pickle")
    for at, mark, kind, name in _MARKS:
        # behind another mark, as text may have the same letters there
        if head[at : at + len(mark)] == mark and head.startswith(_BEFORE.get(at, b"")):
            return Content(kind, f"is {name}", _UNPACK if kind == "packed" else None)
    return None


def _text(head: bytes, size: int) -> Content | None:
    try:
        # the last character may be cut
        text = head.decode("utf-8-sig", errors="strict" if len(head) == size else "ignore").strip()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    if text.startswith("<"):
        return _markup(text)
    return (_pointer(text) or _answer(text)) if len(head) == size else None


def _pointer(text: str) -> Content | None:
    for begins, name, tool in _POINTERS:
        if text.startswith(begins) and len(text) < 2048:
            stands_for = _SIZE.search(text)
            file = f"a file of {int(stands_for[1]):,} bytes" if stands_for else "a file"
            what = f"is {name}, for {file} that `{tool}` fetches"
            return Content("pointer", what, f"in its repository: {tool}")
    return None


def _answer(text: str) -> Content | None:
    """Return the content of a small file of text, all of which is given."""
    if text.startswith("{") and (said := _error_in(text)):
        return Content("answer", f"is a server's answer about an error: {_short(said)}", _AGAIN)
    if text and len(text) < 512 and text.replace("\n", " ").isprintable():
        return Content("text", f'is text: "{_short(text)}"', _AGAIN)
    return None


def _markup(text: str) -> Content | None:
    if re.search(r"<svg[\s>]", text[:2048]):
        return Content("other", "is an SVG drawing, of lines and not of pixels")
    if _PAGE.search(text[:2048]):
        title = _TITLE.search(text)
        words = _short(_TAGS.sub(" ", title[1] if title else text))
        return Content("page", f"is an HTML page{f': {words}' if words else ''}", _AGAIN)
    if text.startswith(("<?xml", "<Error")) and "<Error" in text:
        words = _short(_TAGS.sub(" ", re.sub(r"<\?.*?\?>", " ", text)))
        return Content("answer", f"is a server's answer about an error: {words}", _AGAIN)
    return Content("other", "is XML") if text.startswith("<?xml") else None


def _error_in(text: str) -> str | None:
    """Return the message of a server's error; None where a JSON object is none."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, Mapping) or not found or not found.keys() <= _OF_ANSWERS:
        return None
    said = next((found[key] for key in _SAYS if found.get(key)), None)
    if isinstance(said, Mapping):
        said = next((said[key] for key in ("message", "code", "type") if said.get(key)), None)
    if isinstance(said, list):
        said = said[0] if said else None
    plain = said if isinstance(said, str) else None
    lone = found.keys() <= {"message", "type", "data", "title"}  # it may be anybody's data
    return None if lone and len(found) > 1 else plain


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _SHOWN else words[:_SHOWN] + "…"


def small_file(file: Path, most: int | None = None) -> bytes:
    """Return the content of a file that nobody has large, as a model's JSON.

    Args:
        most: the most bytes; None: `LARGEST_SMALL_FILE`.

    Raises:
        OSError: it cannot be read, is no file, or has more bytes, and is not read.
    """
    with open_regular(file, LARGEST_SMALL_FILE if most is None else most) as opened:
        return opened.read()


def read_small_json(file: Path) -> Any:
    """Return the value of a JSON file that nobody has large, as a result.

    Raises:
        OSError: as `small_file`.
        ValueError: it is no JSON.
    """
    try:
        return json.loads(of_few_parts(small_file(file, _LARGEST_JSON)))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def of_few_parts(text: bytes) -> bytes:
    """Return the text of JSON.

    Raises:
        OSError: it has so many lists or objects that its values do not fit into memory.
    """
    if (parts := text.count(b"[") + text.count(b"{")) > _MOST_PARTS:
        why = f"it has {parts:,} lists and objects; at most {_MOST_PARTS:,} are read"
        raise _NotOpenedError(errno.EFBIG, why)
    return text


def read_lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file; of one that is longer than any line is, the parts.

    Raises:
        OSError: as `small_file`.
    """
    with open_regular(file, _LARGEST_LINES) as opened:
        while line := opened.readline(_LARGEST_JSON):
            yield line


class _NotOpenedError(OSError):
    """A file that is refused; its text names the reason alone."""

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(file: str | Path, most: float = math.inf) -> BufferedReader:
    """Open a file to read it; never a pipe or a device, which may never end.

    Raises:
        OSError: it cannot be read, is no file, or has more bytes than `most`.
    """
    # to open a pipe is to wait for who writes
    opened = open(  # noqa: SIM115
        file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
    )
    status = os.fstat(opened.fileno())
    if S_ISREG(status.st_mode) and status.st_size <= most:
        return opened
    opened.close()
    if not S_ISREG(status.st_mode):
        raise _NotOpenedError(errno.EINVAL, "it is no file", str(file))
    why = f"it has {status.st_size:,} bytes; at most {most:,} are read"
    raise _NotOpenedError(errno.EFBIG, why, str(file))


def ends_early(given: Path | bytes) -> bool:
    """Return whether a file ends before its end, as its own format says.

    It is for files that a reader has refused: what is not known is False.
    """
    if isinstance(given, Path):
        try:
            size = given.stat().st_size
            with open_regular(given) as file:
                head = file.read(64)
                if head.startswith(_MATROSKA):
                    return _segment_ends_early(head, size)
                if head[4:8] == b"ftyp":
                    return head[8:12] not in _PICTURE_BRANDS and _boxes_end_early(file, size)
                file.seek(max(0, size - 1024))
                return _ends_early(head, file.read(), size)
        except OSError:
            return False
    if given[4:8] == b"ftyp":
        return False
    return _ends_early(given[:64], given[-1024:], len(given))


_ENDS: tuple[tuple[bytes, Callable[[bytes], bool]], ...] = (
    (b"\xff\xd8\xff", lambda tail: b"\xff\xd9" in tail),
    (b"\x89PNG", lambda tail: b"IEND" in tail),
    (b"GIF8", lambda tail: tail.rstrip(b"\0").endswith(b";")),
    (b"PAR1", lambda tail: tail.endswith(b"PAR1")),
    (b"ARROW1", lambda tail: tail.endswith(b"ARROW1")),
)
"""The beginning of a file, and whether its last bytes are those of its end."""
_SIZES = ((b"RIFF", 4, 8), (b"BM", 2, 0))
"""The beginning of a file, the place of its size, and what is not counted in that."""


def _ends_early(head: bytes, tail: bytes, size: int) -> bool:
    if any(head.startswith(begins) and not is_end(tail) for begins, is_end in _ENDS):
        return True
    return any(
        head.startswith(begins) and int.from_bytes(head[at : at + 4], "little") + more > size
        for begins, at, more in _SIZES
    )


def _segment_ends_early(head: bytes, size: int) -> bool:
    """Return whether a Matroska file ends within its segment, the one element behind its header."""
    header, width = _variable(head, 4)
    at = 4 + width + header
    if head[at : at + 4] != b"\x18\x53\x80\x67":
        return at > size
    length, width = _variable(head, at + 4)
    live = length == 2 ** (7 * width) - 1  # of no known length
    return not live and at + 4 + width + length > size


def _variable(head: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable width, and its bytes: the first bit that is 1 says how many."""
    first = head[at] if at < len(head) else 1
    width = 9 - first.bit_length()
    value = int.from_bytes(head[at : at + width], "big")
    return value & (2 ** (7 * width) - 1), width


def _boxes_end_early(file: Any, size: int) -> bool:
    """Return whether the last box of an MP4 goes over the file's end, or it has no index."""
    at, names = 0, set[bytes]()
    while at + 8 <= size and len(names) < 10_000:
        file.seek(at)
        length, name = struct.unpack(">I4s", file.read(8))
        if length == 1:
            wide = file.read(8)
            length = int.from_bytes(wide, "big") if len(wide) == 8 else 0
        names.add(name)
        if length == 0:  # it goes to the end
            at = size
        elif length < 8:
            return False
        else:
            at += length
    return at != size or not names & {b"moov", b"moof"}
