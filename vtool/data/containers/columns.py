"""Rows of Arrow and Parquet as the JSON objects that they were made of, or refused."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from vtool.data.containers.files import not_readable, unreadable_file
from vtool.data.containers.json_array import LARGEST_ROW, too_large
from vtool.data.missing import missing_in_words
from vtool.data.row import refuse
from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.words import first_line

_MOST_WITHOUT_BYTES, _MOST_IN_BYTE = 2**20, 8
"""Rows that a file may have whatever its size is, and rows for each of its bytes."""
_MERGED = ("arguments", "parameters")
"""Objects of tools, whose keys each row has of its own, and Arrow gives to every row."""
_CHATS = ("messages", "prompt", "completion")
_LISTS = (
    *_CHATS,
    *("conversations", "conversation", "texts", "history", "images", "videos", "objects"),
)
_MAY_BE_TEXT = ("prompt", "completion", "images", "videos")


def pyarrow(module: str, what: object) -> Any:
    """Import a module of pyarrow, which the extra `data` brings.

    Args:
        what: the file that is to be read or written.

    Raises:
        Findings: `extra-not-installed`, fatal.
    """
    try:
        return import_module(module)
    except ImportError as error:
        message = f"{what} needs the extra `data`: pyarrow is not installed"
        help = "pip install 'vtool[data]'"
        raise Findings(
            Diagnostic("extra-not-installed", message, help, "pyarrow"), fatal=True
        ) from error


@contextmanager
def read_by_arrow(file: Path, refused: Callable[[str], Findings]) -> Iterator[None]:
    """Raise what pyarrow raises at somebody's file as findings.

    Args:
        refused: makes the exception from the reason.

    Raises:
        Findings: `path-not-found` where the system does not open the file; else `refused`'s. Arrow
            allocates what the file says: out of memory is the file's fault as well.
    """
    try:
        yield
    except Findings:
        raise
    except MemoryError as error:
        raise refused(f"it asks for more memory than there is ({first_line(error)})") from error
    except (pyarrow("pyarrow", file).ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.strerror:  # the system's, not the format's
            raise not_readable(file, error) from error
        raise refused(first_line(error)) from error


def row_of(table: Any, index: int, name: str, origin: Origin) -> dict[str, Any]:
    """Return a row of a table as `from_columns`.

    Raises:
        Findings: `broken-row`, where it cannot be read, or is larger than a row may be; as
            `from_columns`.
    """
    with read_by_arrow(Path(origin.file), partial(unreadable_row, name, origin)):
        one = table.slice(index, 1)
        size = one.nbytes
        # as many references, of four bytes, to a value that may be all that is there
        if size // 4 * one.get_total_buffer_size() > LARGEST_ROW:
            size = sum(unpacked_bytes(each) for column in one.columns for each in column.chunks)
        if size > LARGEST_ROW:
            raise too_large(size, name, origin)
        row = one.to_pylist()[0]
    return from_columns(row, name, origin)


def check_row_count(files: Sequence[Path], rows: int) -> None:
    """Refuse more rows than files can have: what each costs is allocated at once.

    Raises:
        Findings: `broken-row`.
    """
    size = sum(file.stat().st_size for file in files)
    if rows > max(_MOST_WITHOUT_BYTES, _MOST_IN_BYTE * size):
        raise unreadable_file(files[0], f"says that it has {rows:,} rows, in {size:,} bytes")


def unpacked_bytes(array: Any) -> int:
    """Return the bytes of an array's values, each as often as it is there."""
    kind, types = array.type, pyarrow("pyarrow.types", "rows")
    if types.is_dictionary(kind):
        compute, counts = pyarrow("pyarrow.compute", "rows"), array.indices.value_counts()
        values = array.dictionary.take(counts.field("values"))
        if not (types.is_binary(kind.value_type) or types.is_string(kind.value_type)):
            return int(values.nbytes)
        lengths = compute.binary_length(values).cast("int64")
        return int(compute.sum(compute.multiply(lengths, counts.field("counts"))).as_py() or 0)
    if types.is_struct(kind):
        return sum(map(unpacked_bytes, array.flatten()))
    return unpacked_bytes(array.flatten()) if hasattr(array, "flatten") else int(array.nbytes)


def unreadable_row(name: str, origin: Origin, why: str) -> Findings:
    """Return the exception for a row whose columns cannot be read, as by a name that is no text."""
    return refuse("broken-row", f"{name} cannot be read: {why}", origin, help="copy its file again")


def from_columns(row: Mapping[str, Any], name: str, origin: Origin) -> dict[str, Any]:
    """Return a row of columns without the keys that it does not have.

    Arrow has one list of keys for all rows: those of other rows come as null. Where JSON is kept as
    text (`tools`, and `tool_calls` of a message) it is read.

    Raises:
        Findings: `merged-by-arrow`, where a null may be either; `malformed-messages`.
    """
    if where := _merged([row.get(column) for column in (*_CHATS, "tools")]):
        message = f'{name}: {where} has a null, which may be the key of another row\'s "{where}"'
        raise refuse("merged-by-arrow", message, origin)
    record: dict[str, Any] = _present(row)
    read_lists(record, name, origin)
    _read_text(record, "tools", name, origin)
    for column in _CHATS:
        messages = record.get(column)
        for message in messages if isinstance(messages, list) else ():
            if isinstance(message, dict):
                _read_text(message, "tool_calls", name, origin)
    return record


def read_lists(record: dict[str, Any], name: str, origin: Origin) -> None:
    """Read the lists that a row keeps as JSON in a text, as `json.dumps` writes them into a column.

    Raises:
        Findings: `malformed-messages`.
    """
    for key in _LISTS:
        text = record.get(key)
        begins = "{" if key == "objects" else "["
        if not isinstance(text, str) or not text.lstrip().startswith(begins):
            continue
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            of_python = re.match(r"\s*[\[{]\s*[\[{]?\s*'", text)
            if key in _MAY_BE_TEXT and not of_python:
                continue
            what = "a list as Python's str() writes it, and no JSON"
            message = f'{name}: "{key}" is text: {what if of_python else error}'
            help = f"write json.dumps({key}) into that column, or the list itself"
            raise refuse("malformed-messages", message, origin, help=help) from error
        if key not in _MAY_BE_TEXT[:2] or (found and all(isinstance(one, dict) for one in found)):
            record[key] = found


def read_json_text(text: str, what: str, name: str, origin: Origin) -> Any:
    """Return the value of JSON that a row keeps as text.

    Raises:
        Findings: `malformed-messages`.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        words = missing_in_words(text) or f"text, but not JSON: {error}"
        message = f'{name}: "{what}" is {words}'
        raise refuse("malformed-messages", message, origin) from error


def _read_text(record: dict[str, Any], key: str, name: str, origin: Origin) -> None:
    if isinstance(text := record.get(key), str):
        record[key] = read_json_text(text, key, name, origin) if text else None


def _merged(value: Any) -> str | None:
    """Return the key of an object of a tool that has a null somewhere inside."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in _MERGED and isinstance(inner, Mapping) and _has_null(inner):
                return str(key)
            if where := _merged(inner):
                return where
    elif isinstance(value, list):
        return next(filter(None, map(_merged, value)), None)
    return None


def _has_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_null, value.values()))
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))


def _present(value: Any) -> Any:
    """Return a value without its null keys, but for content, which a call of tools may lack."""
    if isinstance(value, Mapping):
        return {
            key: _present(inner)
            for key, inner in value.items()
            if inner is not None or key == "content"
        }
    return [_present(inner) for inner in value] if isinstance(value, list) else value
