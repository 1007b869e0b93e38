"""Files of rows: what they are by their first bytes, their digests, and why one cannot be read."""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, cast

from vtool.config.schema import Run
from vtool.config.schema.formats.entry import TABLE_SUFFIXES, rows_bytes
from vtool.contents import content_of, ends_early, open_regular, stand_in, wide_encoding
from vtool.data.row import refuse
from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.near_files import near_file, quoted_name

Kind = Literal["json", "arrow", "parquet", "tar"]
_READ_TABLE = {".csv": "read_csv('{}')", ".tsv": "read_csv('{}', sep='\\t')"}
_LAYOUTS = (
    *({"messages"}, {"conversations"}, {"instruction", "output"}),
    *({"query", "response"}, {"prompt", "completion"}),
)
"""Columns by which a table has rows of a layout that is read."""
KIND_NAMES = {"json": "JSON", "parquet": "Parquet", "arrow": "Arrow", "tar": "a tar"}
_KINDS: dict[str, Kind] = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tar": "tar",
}
"""The kind that a file's name says, for each of `ROWS_SUFFIXES`."""
MOST_LISTED = 20
"""Findings of one file that are listed; the others are counted."""
_OF_COLUMNS = (".parquet", ".arrow")
_SAVED = ("state.json", "dataset_dict.json")  # of a folder that `save_to_disk` has made
_HEAD = 512
_AS_MESSAGES = (
    '{"messages": [{"role": "user", "content": "What is this?"},'
    ' {"role": "assistant", "content": "A bus."}], "images": ["bus.jpg"]}'
)


def file_kind(path: Path) -> Kind:
    """Return the kind of a file, by its first bytes.

    Raises:
        Findings: `path-not-found`; `broken-row`, where it is in the place of another file, is
            packed, and has no random access, is text in UTF-16, or a table of other columns.
    """
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise not_readable(path, error) from error
    found = content_of(path)
    kind = found.kind if found else ""
    if found and (found.stands_in or kind == "text") and not _may_be_rows(path, kind, head):
        raise unreadable_file(path, f"{found.what}, and no rows", found.remedy)
    is_known = kind in ("parquet", "arrow", "tar")
    is_table = path.suffix.lower() in TABLE_SUFFIXES and not is_known
    if is_table and not head.lstrip().startswith((b"{", b"[")):
        raise _table(path, head)
    if not is_known and (encoding := wide_encoding(head)):
        out = shlex.quote(str(path.with_name(f"{path.stem}-utf8{path.suffix}")))
        help = f"iconv -f {encoding} -t UTF-8 {shlex.quote(str(path))} > {out}"
        raise unreadable_file(path, f"is text in {encoding}, and UTF-8 is read", help)
    if found and kind == "packed":
        what = f"{found.what}: no row of it can be read without all before"
        raise unreadable_file(path, what, found.remedy)
    if found and kind in ("picture", "video", "other"):
        raise unreadable_file(path, f"{found.what}, and no rows")
    if is_known:
        return cast(Kind, kind)
    return "tar" if path.suffix == ".tar" and b"\0" in head else "json"


def check_name(file: Path, kind: Kind) -> None:
    """Check that a file is what its name says.

    Raises:
        Findings: `broken-row`, with how to read it.
    """
    by_name = _KINDS.get(file.suffix)
    if by_name in (None, kind):
        return
    with file.open("rb") as opened:
        text = opened.read(_HEAD).removeprefix(b"\xef\xbb\xbf").lstrip()
    if kind == "json" and not text.startswith((b"{", b"[")):
        raise unreadable_file(
            file,
            f"is not {KIND_NAMES[by_name]}, as its name says",
            "it may be cut off: copy it again",
        )
    own = next(suffix for suffix, each in _KINDS.items() if each == kind)
    if text.startswith(b"{"):
        own = ".jsonl"
    help = f"rename it to {file.stem}{own}, which is read as it is"
    if by_name == "json":
        converted = shlex.quote(str(file.with_name(f"{file.stem}-lines.jsonl")))
        help += f", or write it as JSON lines: vtool convert {shlex.quote(str(file))} {converted}"
    what = f"is {KIND_NAMES[kind]}, and its name says {KIND_NAMES[by_name]}"
    raise unreadable_file(file, what, help)


def _table(path: Path, head: bytes) -> Findings:
    """Return the exception for a table; one whose columns are a layout's becomes JSON lines."""
    what = f"is a table ({path.suffix}), which is not read"
    columns = re.findall(r"[^\s,;\"]+", head.decode("utf-8-sig", "replace").split("\n")[0])
    reader = _READ_TABLE.get(path.suffix.lower())
    if reader and any(layout <= set(columns) for layout in _LAYOUTS):
        out = path.with_suffix(".jsonl").name
        lines = f".to_json('{out}', orient='records', lines=True)"
        code = f"import pandas; pandas.{reader.format(path.name)}{lines}"
        help = f'write it as JSON lines, where lists may be JSON as text: python -c "{code}"'
        return unreadable_file(path, f"{what}, with the columns {', '.join(columns)}", help)
    help = f"write it as JSON lines, one object a row: {_AS_MESSAGES}"
    return unreadable_file(path, f"{what}: its columns do not say who speaks", help)


def _may_be_rows(path: Path, kind: str, head: bytes) -> bool:
    """Return whether an empty file or short text may be rows all the same: its reader says more."""
    suffix = path.suffix.lower()
    if kind == "empty":
        return not head and suffix not in _OF_COLUMNS
    text = head.removeprefix(b"\xef\xbb\xbf").strip()
    is_message = b"\n" not in text and text[:1] not in b'{["' and not _is_json(text)
    return kind == "text" and (suffix in TABLE_SUFFIXES or not is_message)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def needs_pyarrow(path: Path) -> bool:
    """Return whether the rows of a path are in Arrow or Parquet, as its files or their names say.

    What is not there yet is not refused.
    """
    if path.suffix in _OF_COLUMNS:
        return True
    try:
        files = [each for each in path.iterdir() if each.is_file()] if path.is_dir() else [path]
        if any(each.suffix in _OF_COLUMNS or each.name in _SAVED for each in files):
            return True
        return path.is_file() and file_kind(path) in ("arrow", "parquet")
    except (OSError, Findings):
        return False


def unreadable_rows(run: Run) -> Iterator[Diagnostic]:
    """Look at the first bytes of a run's files of rows: one that is empty, packed, or a table."""
    for path in [
        Path(path)
        for entries in run.data.splits.values()
        for entry in entries
        for path in entry.files().values()
        if os.path.isfile(path)
    ]:
        if not path.stat().st_size:
            yield empty_file(path)
            continue
        try:
            check_name(path, file_kind(path))
        except Findings as found:
            yield from found.diagnostics


def empty_file(path: Path | str) -> Diagnostic:
    """Return the finding on a file without a byte, or without a row."""
    help = "look at what wrote it; rows are one JSON object a line, or a JSON array of objects"
    message = f"{path} {'has no row' if rows_bytes(str(path)) else 'is empty, of 0 bytes'}"
    return Diagnostic("no-rows", message, help, origin=Origin(str(path)))


def digest_of_files(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of a file; of several, that of their names and digests."""
    digests = []
    for path in paths:
        try:
            with open_regular(path) as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise not_readable(path, error) from error
    if len(paths) == 1:
        return digests[0]
    lines = (f"{digest}  {path.name}\n" for digest, path in zip(digests, paths, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def not_readable(path: Path, error: OSError) -> Findings:
    """Return the exception for a file or a folder that the system does not open."""
    near = near_file(str(path), folders=True)
    return refuse(
        "path-not-found",
        f"{quoted_name(str(path.absolute()))}: {error.strerror}",
        None,
        parameter="data",
        help=near.question if near else "paths are relative to the folder you are in",
    )


def unreadable_file(path: Path, why: str, help: str | None = None) -> Findings:
    """Return the exception for a file of which no row can be read.

    Where it is in the place of another file, or ends early, it says that.
    """
    if found := stand_in(path):
        why, help = f"{found.what}, and no rows", found.remedy
    elif ends_early(path):
        why, help = f"is cut off: it {why}", help or "copy it again"
    return refuse("broken-row", f"{path} {why}", Origin(str(path)), help=help)


def raise_found(findings: Iterable[Diagnostic]) -> None:
    """Raise what was found in a file, if anything: the first ones, and the number of the others.

    Raises:
        Findings: of any rule.
    """
    found = list(findings)
    if len(found) > MOST_LISTED:
        more = Diagnostic(found[0].rule, f"… and {len(found) - MOST_LISTED} more like these")
        found = [*found[:MOST_LISTED], more]
    if found:
        raise Findings(found)
