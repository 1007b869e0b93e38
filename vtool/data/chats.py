"""Readers of chats: a row of any layout becomes one of `messages`, or is refused by name."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from vtool.config.schema.formats.entry import MIXTURE_SETTINGS, RowsEntry
from vtool.data.containers.columns import read_json_text
from vtool.data.containers.records import open_records
from vtool.data.groups import group_of_value
from vtool.data.keys import is_said, slip
from vtool.data.messages_layout import NO_ANSWER, Malformed, parse_row
from vtool.data.missing import (
    is_empty,
    is_empty_pair,
    is_missing_text,
    is_nan,
    missing_in_words,
    present,
)
from vtool.data.row import Remark, Row, refuse, shown_value
from vtool.data.urls import UrlCache
from vtool.diagnostics import Findings, Origin

_IDS = ("id", "uid", "uuid")
"""Keys of what one row is called; `image_id`, `conversation_id` and the like are of several."""
VISUALS = ("image", "images", "video", "videos")


class ChatReader(ABC):
    """The rows of one path in one layout."""

    format: ClassVar[str]
    reads: Collection[str]
    """The keys of a row that are read."""
    words: ClassVar[str]
    """The layout as a sentence has it, behind a number of rows: `Alpaca instructions`."""

    def __init__(
        self,
        path: str,
        label: str | None = None,
        *,
        folder: str | None = None,
        whatever_its_name: bool = False,
        urls: UrlCache | None = None,
        group: str | None = None,
        ignore: Sequence[str] | None = None,
    ) -> None:
        """Find the rows of `path`.

        Args:
            label: the beginning of its rows' names, in place of the file's own name.
            folder: the folder of images and videos; the file's own without it.
            whatever_its_name: read a file as what it is, where its name says something else.
            urls: the images that may be fetched; None: none may.
            group: the key of every row that says which group it is in.
            ignore: keys of a row that may be there, and are not read; None is none of them.

        Raises:
            Findings: as `open_records`.
        """
        self.urls, self.group, self.ignore = urls, group, tuple(ignore or ())
        self.given_ignore = None if ignore is None else list(ignore)
        self.records = open_records(path, label, whatever_its_name=whatever_its_name)
        self.folder = folder or str(_beside(Path(path)))

    @classmethod
    def open(cls, entry: RowsEntry, label: str | None, **more: Any) -> Self:
        """Open an entry's rows: each of its settings is an argument of its name."""
        own = entry.model_dump(exclude={"format", *MIXTURE_SETTINGS})
        return cls(label=label, **own, **more)

    @staticmethod
    @abstractmethod
    def fits(record: Mapping[str, Any]) -> bool:
        """Return whether a row has the keys by which this layout is known."""

    @abstractmethod
    def to_messages(self, record: Mapping[str, Any], malformed: Malformed) -> dict[str, Any]:
        """Return a row in the layout `messages`.

        Raises:
            Findings: of the rules VT6xx, where that would lose something.
        """

    def unread(
        self, record: Mapping[str, Any], made: Mapping[str, Any], malformed: Malformed
    ) -> dict[str, Any]:
        """Return the keys of a row that the layout does not read, where `made` is without them."""
        return {}

    def __len__(self) -> int:
        return len(self.records)

    def name(self, index: int) -> str:
        return self.records.name(index)

    def origin(self, index: int) -> Origin:
        """Return the place of row `index`, for findings."""
        return self.records.origin(index)

    def record(self, index: int) -> dict[str, Any]:
        """Return row `index` as its file has it.

        Raises:
            Findings: where it cannot be read.
        """
        return self.records.record(index)

    def row(self, index: int) -> Row:
        name, origin, record = self.name(index), self.origin(index), self.record(index)
        own_id = self.given_id(record)
        group = None if self.group is None else self._take_group(record, self.group, name, origin)
        malformed = Malformed(name, origin)
        given = present(record, self.reads, malformed)
        messages = self.to_messages(given, malformed)
        made = {**self.unread(given, messages, malformed), **messages}
        made = self.records.complete(made, self.place(index))
        folder = Path(self.folder)
        row = parse_row(made, name, folder, origin, self.urls, own_id, self.ignore)
        if remarks := [*self._missing_input(given), *_missing_messages(row)]:
            row = replace(row, remarks=(*row.remarks, *remarks))
        return row if group is None else replace(row, group=group)

    def _missing_input(self, record: Mapping[str, Any]) -> Iterator[Remark]:
        """Yield a remark on Alpaca's input that is a word for none: in a message, it is a line."""
        if "input" in self.reads and (words := missing_in_words(record.get("input"))):
            yield Remark("missing-as-text", f'"input" as {words}')

    def given_id(self, record: Mapping[str, Any]) -> str:
        """Return the id that a row has in its file, empty for none."""
        return next((str(record[key]) for key in _IDS if record.get(key) not in (None, "")), "")

    def place(self, index: int) -> int:
        """Return the place in the file of what row `index` is made of."""
        return index

    def _take_group(self, record: dict[str, Any], key: str, name: str, origin: Origin) -> int:
        """Return the group that a row's own key says; the key is then read.

        Raises:
            Findings: `missing-group`.
        """
        value = record.get(key) if key in self.reads else record.pop(key, None)
        if value is None:
            message = f'{name} has no "{key}", which data.split.group names'
            raise refuse("missing-group", message, origin, parameter="data.split.group")
        return group_of_value(value)

    def describe(self) -> dict[str, Any]:
        return {"format": self.format, "ignore": self.given_ignore, **self.records.describe()}


class ColumnsReader(ChatReader):
    """The rows of one path in a layout of columns, which may be in a folder of images."""

    def __init__(
        self,
        path: str,
        label: str | None = None,
        *,
        image_folder: str | None = None,
        **more: Any,
    ) -> None:
        """Find the rows of `path`.

        Args:
            label: the beginning of its rows' names, in place of the file's own name.
            image_folder: the folder of images and videos; the file's own without it.

        Raises:
            Findings: as `open_records`.
        """
        super().__init__(path, label, folder=image_folder, **more)
        self.image_folder = image_folder

    def unread(
        self, record: Mapping[str, Any], made: Mapping[str, Any], malformed: Malformed
    ) -> dict[str, Any]:
        """Return the keys of a row that the layout does not read, without what its texts say.

        Raises:
            Findings: `malformed-messages`, for one that is meant for a key that is read.
        """
        handled = {*self.reads, *self.ignore}
        rest = {key: value for key, value in record.items() if key not in handled}
        if not rest:
            return rest
        for key, value in rest.items():
            if is_empty(value) or is_nan(value):
                continue
            meant = slip(tuple(self.reads), key, value)
            if meant and meant not in record:
                raise malformed(f'the row has "{key}", which is not read', f'write "{meant}"')
            if key in made:
                raise malformed(f'the row has "{key}", which {self.format} does not read')
        said = {value for key in self.reads if isinstance(value := record.get(key), str) and value}
        return {key: value for key, value in rest.items() if not is_said(value, said)}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "image_folder": self.image_folder}


def _missing_messages(row: Row) -> Iterator[Remark]:
    first = True
    for message in row.messages:
        role, content = message["role"], message["content"]
        short = isinstance(content, str) and len(content) < 12
        if short and is_missing_text(role, content, first=first):
            yield Remark("missing-as-text", f'the text "{content.strip()}" of the {role}')
        first = first and role != "user"


def _beside(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def visuals(record: Mapping[str, Any], malformed: Malformed) -> dict[str, list[Any]]:
    """Return the row's lists of images and videos; one alone may stand for a list.

    Raises:
        Findings: `malformed-messages`.
    """
    made = {}
    for kind in ("image", "video"):
        given = [key for key in (kind, f"{kind}s") if record.get(key)]
        if len(given) > 1:
            raise malformed(f'the row has both "{kind}" and "{kind}s"')
        if given:
            found = record[given[0]]
            made[f"{kind}s"] = found if isinstance(found, list) else [found]
    return made


def tools(record: Mapping[str, Any], malformed: Malformed) -> dict[str, Any]:
    """Return the row's tools, which may be JSON as text.

    Raises:
        Findings: `malformed-messages`.
    """
    given = record.get("tools")
    if isinstance(given, str) and given:
        origin = malformed.origin or Origin(malformed.name)
        given = read_json_text(given, "tools", malformed.name, origin)
    return {"tools": given} if given else {}


def exchanges(
    pairs: Any, what: str, malformed: Malformed, system: Any = None
) -> Iterator[dict[str, Any]]:
    """Yield the messages of pairs of a question and its answer, the system's first.

    Raises:
        Findings: `malformed-messages`.
    """
    if system:
        yield {"role": "system", "content": text(system, "system", malformed)}
    if not isinstance(pairs, list | tuple):
        raise malformed(f'"{what}" must be a list of pairs; here it is {shown_value(pairs)}')
    earlier = what == "history"
    for place, pair in enumerate(pairs):
        if earlier and is_empty_pair(pair):
            continue
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise malformed(f'"{what}" has {shown_value(pair)}, which is no pair of two texts')
        asked, answered = (f"{what}[{place}][{side}]" if earlier else what for side in (0, 1))
        yield {"role": "user", "content": text(pair[0], asked, malformed)}
        yield {"role": "assistant", "content": answer_text(pair[1], answered, malformed)}


def text(value: Any, what: str, malformed: Malformed) -> str:
    """Return a value that must be text.

    Raises:
        Findings: `malformed-messages`.
    """
    if is_nan(value):
        raise malformed(f'"{what}" is {missing_in_words(value)}', 'write the text, null or ""')
    if not isinstance(value, str):
        raise malformed(f'"{what}" must be text; here it is {shown_value(value)}')
    return value


def answer_text(value: Any, what: str, malformed: Malformed) -> str:
    """Return an answer, which must be text.

    Raises:
        Findings: `malformed-messages`.
    """
    if value is None or is_nan(value):
        seen = "null or not there" if value is None else missing_in_words(value)
        raise malformed(f'the row has no answer: "{what}" is {seen}', NO_ANSWER)
    return text(value, what, malformed)


def not_for_training(malformed: Malformed, what: str, help: str | None = None) -> Findings:
    """Return the exception for a row that is for another task."""
    return refuse("not-for-training", f"{malformed.name}: {what}", malformed.origin, help=help)
