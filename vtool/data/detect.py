"""The layout of a file of rows, found from its first rows; what is not certain is refused."""

import os
import shlex
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from vtool.config.schema import Run, Source
from vtool.config.schema.formats import FORMATS
from vtool.config.schema.formats.auto import AutoSource
from vtool.config.schema.formats.entry import (
    ROWS_SUFFIXES,
    TABLE_SUFFIXES,
    has_rows_files,
    is_rows_file,
)
from vtool.data.as_messages import command_for, is_unreadable
from vtool.data.containers.arrow import SPLITS, STATE
from vtool.data.containers.files import empty_file
from vtool.data.containers.records import JoinedRows, Records, open_records
from vtool.data.formats import LAYOUTS
from vtool.data.formats.llama_factory import INFO, info_file, read_info
from vtool.data.keys import OTHER_TASKS
from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.near_files import quoted_name
from vtool.words import plural

_MOST_FILES = 8
_MAY_HAVE_ROWS = (
    *(".txt", ".jl", ".jsonlines", ".json5", ".xls", ".xml", ".yaml", ".yml", ".pkl"),
    *(".feather", ".orc", ".avro", ".tfrecord", ".db", ".sqlite", ".zip", ".tgz"),
)
"""Ends of names of files that may have rows too; with `_ABOUT`, they are about the others."""
_ABOUT = ("README", "LICENSE", "NOTICE", "REQUIREMENTS", "CITATION")
_LOOKED_AT = 100
"""The rows at the beginning that are looked at, of each file of a folder."""
_OF_SWIFT = {"response", "conversation"}
"""Keys of ms-swift's other shapes: with `messages` too, a row has two."""
_MESSAGES = (
    '{"messages": [{"role": "user", "content": "<image>What is this?"}, {"role": "assistant",'
    ' "content": "A cat."}], "images": ["cat.png"]}'
)
_PACKED = "a list of rows: unpack it, a row each"


def detect(path: str, *, whatever_its_name: bool = False) -> Source:
    """Return the settings of the format that a path's rows are in.

    Args:
        whatever_its_name: read a file as what it is, where its name says something else.

    Raises:
        Findings: `layout-not-certain`, with what to write; `not-for-training`; and as
            `open_records`.
    """
    if _is_info(Path(path)):
        return _of_info(path)
    records = open_records(path, whatever_its_name=whatever_its_name, first=_LOOKED_AT)
    found, unknown, unreadable = _look(records, path)
    if found.keys() == {"messages", "swift"}:  # where one turn says its loss, the others need not
        del found["messages"]
    if len(found) > 1:
        (one, first), (two, second), *_ = found.items()
        what = (
            f"{path} has rows of several layouts: {records.name(first)} is of {one},"
            f" {records.name(second)} of {two}"
        )
        raise _uncertain(records, second, what, _apart(path, one))
    if not found:
        raise _nothing(records, unknown, path)
    (name,) = found
    if (alien := _of_no_layout(records, unknown)) is not None:
        file = str(records.origin(alien).file)
        what = f"{records.name(alien)} is of no known layout, and others in {path} are of {name}"
        raise _uncertain(records, alien, what, f"give each alone, or take {file} out of the folder")
    if unreadable is not None:
        index, command = unreadable
        what = f"{records.name(index)} is a row of {name} whose text has no <image> for its image"
        if name == "trl":
            what = f"{records.name(index)} has a prompt without roles"
        raise _uncertain(records, index, what, _as_chats(command))
    if name == "cauldron":
        what = f"{path} has several questions a row ({name}), and nothing says what they become"
        help = (
            f"{_write('cauldron', path, 'texts: turns')} for turns of one chat, each of which sees"
            f" the answers before it; {_write('cauldron', path, 'texts: rows')} for rows"
        )
        raise _uncertain(records, found[name], what, help)
    return entry(name, path=path)


def _look(
    records: Records, path: str
) -> tuple[dict[str, int], dict[int, Mapping[str, Any]], tuple[int, str] | None]:
    """Look at the first rows: the first of each layout, those of none, and a command for all.

    The command is for rows of which none can be read as its layout says, with the first of them.
    """
    found: dict[str, int] = {}
    unknown: dict[int, Mapping[str, Any]] = {}
    unreadable: dict[int, str] = {}
    readable = False
    for index in _first(records):
        try:
            record = records.record(index)
        except ValueError:  # it is a finding of that row, whatever its layout
            continue
        fitting = _fitting(record)
        if len(fitting) > 1:
            names = " and ".join(fitting)
            what = f"{records.name(index)} fits the formats {names}"
            raise _uncertain(records, index, what, _write(fitting[0], path))
        for name in fitting:
            found.setdefault(name, index)
        if not fitting:
            unknown[index] = record
        elif is_unreadable(record):
            command = command_for(record, records.origin(index).file)
            unreadable |= {index: command} if command else {}
        else:
            readable = True
    return found, unknown, None if readable else next(iter(unreadable.items()), None)


def _of_no_layout(records: Records, unknown: Mapping[int, Mapping[str, Any]]) -> int | None:
    """Return the first row of a file of which all that were looked at are of no known layout."""
    files: dict[str, list[int]] = {}
    for index in _first(records) if unknown and isinstance(records, JoinedRows) else ():
        files.setdefault(str(records.origin(index).file), []).append(index)
    alien = (rows[0] for rows in files.values() if all(row in unknown for row in rows))
    return next(alien, None) if len(files) > 1 else None


def detected(run: Run) -> Run:
    """Return a run whose training rows have the formats that were found, in the place of `auto`.

    Rows of which none can be read are left to the format `messages`, whose findings name them all.

    Raises:
        Findings: as `detect`.
    """
    entries = tuple(
        (_readable(each.path) or entry("messages", path=each.path))
        if isinstance(each, AutoSource)
        else each
        for each in run.data.train
    )
    return run.model_copy(update={"data": run.data.model_copy(update={"train": entries})})


def _readable(path: str) -> Source | None:
    """Return the format that is found; None where no row can be read."""
    try:
        return detect(path)
    except NothingReadable:
        return None


def describe_source(source: Mapping[str, Any]) -> str:
    """Return a source's `describe` as words: 12 rows of LLaVA or ShareGPT conversations.

    Empty for rows without a layout.
    """
    kind = words(source.get("layout", source["format"]))
    if kind.endswith(" rows"):
        return f"{source['rows']:,} {kind if source['rows'] != 1 else kind.removesuffix('s')}"
    return f"{plural(source['rows'], 'row')} of {kind}" if kind else ""


def source_messages(source: Mapping[str, Any]) -> list[str]:
    """Return the messages about a source: its copy, its answers, and files that are not read."""
    return list(filter(None, (_of_copy(source), _of_turns(source), _of_left_out(source))))


def _of_turns(source: Mapping[str, Any]) -> str:
    """Return the message about a source of which not all answers are in one sample of their row."""
    if source.get("turns") == "last":
        return "of each row the last answer is learnt (data.turns)"
    samples, rows = source.get("samples", 0), source["rows"]
    if samples == rows or "samples" not in source:
        return ""
    return (
        f"{samples:,} samples of {rows:,} rows: each answer is the last turn of its own, as the"
        " chat template writes earlier turns in another way, or data.turns says so"
    )


def _of_copy(source: Mapping[str, Any]) -> str:
    if "copied_to" not in source:
        return ""
    size = source["largest_group"] / 2**20
    return (
        f"{source['path']} has a row group of {size:,.0f} MiB, all of which would be in memory for"
        f" one row: it is read from a copy, {source['copied_to']}"
    )


def _of_left_out(source: Mapping[str, Any]) -> str:
    """Return the message about files of a source's folder that may have rows, and are not read."""
    folder = Path(source.get("path") or "")
    if not source.get("path") or source["format"] == "llama_factory" or not folder.is_dir():
        return ""
    if any((folder / each).is_file() for each in (STATE, SPLITS)):
        return ""
    names = sorted(filter(None, map(_left_out, folder.iterdir())))
    if not names:
        return ""
    more = ", …" if len(names) > _MOST_FILES else ""
    listed = ", ".join(map(quoted_name, names[:_MOST_FILES])) + more
    return f"{len(names):,} in {source['path']} may have rows, and are not read: {listed}"


def _left_out(path: Path) -> str:
    """Return the name of what may have rows, and is not read; empty for anything else."""
    if path.name.startswith(".") or path.is_dir():
        inside = not path.name.startswith(".") and has_rows_files(str(path))
        return f"{path.name}/" if inside else ""
    suffixes = {suffix.lower() for suffix in path.suffixes[-2:]}
    of_rows = not suffixes.isdisjoint((*ROWS_SUFFIXES, *TABLE_SUFFIXES, *_MAY_HAVE_ROWS))
    about = path.stem.upper().startswith(_ABOUT)
    return "" if not of_rows or about or is_rows_file(path) else path.name


class NothingReadable(Findings):
    """A source has rows, and none among the first that can be read."""


def entry(format: str, **settings: Any) -> Source:
    """Return the settings of a source of rows.

    Raises:
        pydantic.ValidationError: for a setting that the format does not have.
    """
    (made,) = (each for each in FORMATS if format in str(each.model_fields["format"].annotation))
    return made.model_validate({"format": format, **settings}, strict=False)


def words(format: str) -> str:
    """Return a format as a sentence has it behind a number of rows; empty for one without."""
    return next((layout.words for layout in LAYOUTS if layout.format == format), "")


def _first(records: Records) -> list[int]:
    """Return the rows to look at: the first ones of the source, and of each of its files."""
    # files of Parquet and Arrow have the same columns
    starts = records.starts if isinstance(records, JoinedRows) else [0]
    shown = {index for start in starts for index in range(start, start + _LOOKED_AT)}
    return sorted(index for index in shown if index < len(records))


def _fitting(record: Mapping[str, Any]) -> list[str]:
    """Return the formats that a row fits; messages with keys of ms-swift's are ms-swift's."""
    fitting = [layout.format for layout in LAYOUTS if layout.fits(record)]
    if "swift" in fitting and not _OF_SWIFT & record.keys():
        return [name for name in fitting if name != "messages"]
    return fitting


def _nothing(records: Records, unknown: Mapping[int, Mapping[str, Any]], path: str) -> Findings:
    """Return the exception for rows of no known layout."""
    if not len(records):
        return Findings(empty_file(path))
    if not unknown:
        why, help = "has no row among the first that can be read", _write("messages", path)
        finding = Diagnostic("layout-not-certain", f"{path} {why}", help, origin=Origin(path))
        return NothingReadable(finding)
    index, record = next(islice(unknown.items(), 1))
    name = records.name(index)
    if task := next((key for key in OTHER_TASKS if record.get(key)), None):
        what = f'{name} has "{task}": it is {OTHER_TASKS[task]}'
        return Findings(Diagnostic("not-for-training", what, origin=records.origin(index)))
    for layout in ("prompt", "conversations"):
        if isinstance(record.get(layout), list) and any(
            isinstance(each, list) for each in record[layout]
        ):
            return _uncertain(records, index, f'{name}: "{layout}" has {_PACKED}', None)
    lists = [key for key, value in record.items() if isinstance(value, list) and value]
    if len(records) == 1 and lists and isinstance(record[lists[0]][0], Mapping):
        out = shlex.quote(str(Path(path).with_name(f"{Path(path).stem}-rows.jsonl")))
        what = f'{path} is one object, whose "{lists[0]}" has a list of {len(record[lists[0]])}'
        help = f"write its rows: jq -c '.[\"{lists[0]}\"][]' {shlex.quote(path)} > {out}"
        return _uncertain(records, index, what, help)
    keys = ", ".join(list(record)[:10]) or "none"
    command = command_for(record, records.origin(index).file)
    made = f"make `messages` of them, and give what it writes: {command}" if command else None
    help = (
        _in_info(Path(path))
        or made
        or (
            f"write rows as {_MESSAGES}; or name the format, if it is one of"
            f" {', '.join(layout.format for layout in LAYOUTS)}: {_write('FORMAT', path)}"
        )
    )
    return _uncertain(records, index, f"{name} is of no known layout: its keys are {keys}", help)


def _as_chats(command: str) -> str:
    return f"make `messages` of them, and give what it writes: {command}"


def _is_info(path: Path) -> bool:
    """Return whether a path is LLaMA-Factory's; a folder of `save_to_disk` has such a file too."""
    info = info_file(path)
    saved = any((info.parent / each).is_file() for each in (STATE, SPLITS))
    return info.name == INFO and info.is_file() and not saved


def _of_info(path: str) -> Source:
    """Return the one data set of a `dataset_info.json`."""
    info = info_file(Path(path))
    names = list(read_info(info))
    if len(names) == 1:
        return entry("llama_factory", path=path, dataset=names[0])
    what = f"{info} has {len(names)} data sets: {', '.join(names[:10])}"
    help = _write("llama_factory", path, f"dataset: {names[0] if names else 'NAME'}")
    raise Findings(Diagnostic("layout-not-certain", what, help, origin=Origin(str(info))))


def _in_info(path: Path) -> str | None:
    """Return the entry to write where a `dataset_info.json` next to a file names it."""
    info = path.parent / INFO
    try:
        entries = read_info(info) if info.is_file() else {}
    except Findings:
        return None
    for name, each in entries.items():
        if each.get("file_name") == path.name:
            return f"{_write('llama_factory', str(info), f'dataset: {name}')}: it says the columns"
    return None


def _apart(path: str, format: str) -> str:
    """Return help for rows of several layouts: the files of a folder, each a source."""
    named = f"or name the format that all have: data.train=[{_write(format, path)}]"
    if not os.path.isdir(path):
        return f"write the rows of each to a file of its own; {named}"
    files = [str(each) for each in sorted(Path(path).iterdir()) if is_rows_file(each)]
    listed = ",".join(files[:_MOST_FILES]) + ",…" * (len(files) > _MOST_FILES)
    return f"name its files, each of which may have another: 'data.train=[{listed}]'; {named}"


def _write(format: str, path: str, more: str = "") -> str:
    return f"{{format: {format}, path: {shlex.quote(path)}{', ' + more if more else ''}}}"


def _uncertain(records: Records, index: int, what: str, help: str | None) -> Findings:
    return Findings(Diagnostic("layout-not-certain", what, help, origin=records.origin(index)))
