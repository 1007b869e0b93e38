"""Convert rows to the layout `messages`, with an account of what was read of them."""

import glob
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vtool.config.schema import Source
from vtool.config.schema.formats import FORMATS
from vtool.data.chats import ChatReader
from vtool.data.detect import describe_source, detect, entry
from vtool.data.formats import LAYOUTS, READERS
from vtool.data.keys import is_known
from vtool.data.row import refuse, shown_value
from vtool.data.write import Lossy, open_writer
from vtool.diagnostics import Diagnostic, Findings, Origin

SUFFIXES = {".jsonl": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}
"""The kinds of file that are written, by the ends of their names."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """An account of a conversion: rows and keys."""

    source: str
    """The rows and their layout, as a sentence has them."""
    rows: int
    written: int
    """Rows in the file; 0 where none was made, because too many were refused."""
    read: Mapping[str, int]
    """Rows that have a key that was read, by key."""
    left: Mapping[str, int]
    """Rows that have a key that says nothing to the model, by key."""
    ignored: Mapping[str, int]
    """Rows that have another key that was not read, as the layout or `ignore` allows, by key."""
    refused: tuple[Diagnostic, ...]
    """A finding for each row that is not among them."""
    beside: Diagnostic | None = None
    """A note on a file that was left beside the rows."""

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as a result has them."""
        keys = {"read": self.read, "left": self.left, "ignored": self.ignored}
        counts = {"rows": self.rows, "written": self.written, "refused": len(self.refused)}
        return {**counts, "keys": {name: dict(found) for name, found in keys.items()}}


def convert_rows(
    path: str,
    out: Path,
    kind: str | None = None,
    settings: Sequence[str] = (),
    most_dropped: int = 0,
) -> Conversion:
    """Write the rows of a path to a new file.

    Nothing is written under its name before it is whole.

    Args:
        kind: `jsonl`, `parquet` or `arrow`; what the name of `out` says, where it is None.
        settings: KEY=VALUE of the source, such as `format=llava`.
        most_dropped: the rows that may be refused; with more, no file is made.

    Raises:
        Findings: `fatal`, where nothing can be converted.
    """
    try:
        kind = _kind(out, kind)
        reader = open_source(path, settings)
        return _write_rows(reader, out, kind, most_dropped)
    except Findings as findings:
        raise Findings(findings.diagnostics, fatal=True) from findings


def open_source(path: str, settings: Sequence[str] = ()) -> ChatReader:
    """Open the rows of a path, whatever its name says; without a `format=` it is found.

    Raises:
        Findings: as `detect`; `unknown-key`, `wrong-type` or `unknown-choice` of a setting.
    """
    given: dict[str, Any] = {}
    for each in settings:
        key, _, value = each.partition("=")
        try:
            given[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise _wrong("wrong-type", f"{each}: the value is not YAML") from error
    name = given.pop("format", None)
    known = [layout.format for layout in LAYOUTS]
    if name is not None and name not in known:
        raise _wrong("unknown-choice", f"format takes {', '.join(known)}, not {shown_value(name)}")
    source: Source
    if name is None and not given:
        source = detect(path, whatever_its_name=True)
    else:
        name = name or detect(path, whatever_its_name=True).format
        try:
            source = entry(name, path=path, **given)
        except ValidationError as error:
            raise Findings([_unfit(each, name) for each in error.errors()]) from error
    reader = READERS[source.format](source, None, whatever_its_name=True)
    assert isinstance(reader, ChatReader)
    return reader


def _unfit(error: Any, format: str) -> Diagnostic:
    name = ".".join(map(str, error["loc"]))
    (made,) = (each for each in FORMATS if format in str(each.model_fields["format"].annotation))
    has = ", ".join(each for each in made.model_fields if each not in ("format", "path"))
    help = f"format={format} has the settings {has}" if has else f"format={format} has no settings"
    if error["type"] == "extra_forbidden":
        return Diagnostic("unknown-key", f"format={format} has no setting {name}", help)
    if error["type"] == "missing":
        return Diagnostic("missing-key", f"format={format} needs {name}=…", help)
    return Diagnostic(
        "wrong-type", f"{name}={shown_value(error['input'])}: {error['msg'].lower()}", help
    )


def _wrong(rule: str, message: str) -> Findings:
    return Findings(Diagnostic(rule, message))


def _kind(out: Path, kind: str | None) -> str:
    """Return the kind of file to write, which the name of the file has to say too."""
    by_name = SUFFIXES.get(out.suffix)
    if by_name is None or kind not in (None, by_name):
        wanted = next((end for end, each in SUFFIXES.items() if each == kind), None)
        ends = wanted or ", ".join(SUFFIXES)
        what = f"{out} does not end in {ends}: its name would not say what it is"
        help = f"write to {out.with_suffix(wanted or '.jsonl').name}"
        raise Findings(Diagnostic("unknown-choice", what, help))
    return by_name


def _write_rows(reader: ChatReader, out: Path, kind: str, most_dropped: int) -> Conversion:
    if out.exists() or out.is_symlink():
        raise _cannot(out, "is there already, and stays as it is", "name another file")
    _remove_unfinished(out)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("read", "left", "ignored")}
    refused: list[Diagnostic] = []
    try:
        writer = open_writer(part, kind)
    except OSError as error:
        raise _cannot(out, f"cannot be written: {error.strerror}") from error
    try:
        written = 0
        try:
            for index in range(len(reader)):
                try:
                    record = reader.record(index)
                    made = writer.record(reader.row(index), out.parent)
                except Findings as findings:
                    refused.append(findings.diagnostics[0])
                    continue
                except Lossy as error:
                    refused.append(_lossy(reader, index, error))
                    continue
                _count(record, reader, counts)
                writer.write(made)
                written += 1
        finally:
            writer.close()
        if len(refused) > most_dropped or not written:
            written = 0
        else:
            _publish(part, out)
    except OSError as error:
        raise _cannot(out, f"cannot be written: {error.strerror}") from error
    finally:
        left = _unlinked(part)
    return Conversion(
        describe_source(reader.describe()),
        len(reader),
        written,
        **counts,
        refused=tuple(refused),
        beside=left,
    )


def _unlinked(part: Path) -> Diagnostic | None:
    """Remove the name that rows were written under; say where that is not possible."""
    try:
        part.unlink(missing_ok=True)
    except OSError as error:
        message = f"{part} cannot be removed: {error.strerror}"
        return Diagnostic("rows-not-written", message, "remove it", severity="note")
    return None


def _remove_unfinished(out: Path) -> None:
    """Remove what processes have left that were killed while they wrote this file."""
    for part in out.parent.glob(f".{glob.escape(out.name)}.*.part"):
        number = part.name.removesuffix(".part").rpartition(".")[2]
        if number.isdigit() and not _is_alive(int(number)):
            with suppress(OSError):
                part.unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def _count(
    record: Mapping[str, Any], reader: ChatReader, counts: Mapping[str, Counter[str]]
) -> None:
    for key, value in record.items():
        if value in (None, "", [], {}):
            continue
        where = "read" if key in reader.reads else "left" if is_known(key) else "ignored"
        counts[where][key] += 1


def _lossy(reader: ChatReader, index: int, error: Lossy) -> Diagnostic:
    message = f"{reader.name(index)}: {error}"
    return refuse("malformed-messages", message, reader.origin(index)).diagnostics[0]


def _publish(part: Path, out: Path) -> None:
    """Give a whole file its name, which nothing may have got in between.

    Raises:
        OSError: something has.
    """
    try:
        os.link(part, out)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.rename(part, out)


def _cannot(out: Path, what: str, help: str | None = None) -> Findings:
    return Findings(Diagnostic("rows-not-written", f"{out} {what}", help, origin=Origin(str(out))))
