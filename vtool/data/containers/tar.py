"""Rows of a tar as WebDataset lays them out: `KEY.json` is a row, `KEY.jpg` next to it its picture.

The key of a member is its path up to the first dot of the file's name, and the rest is its
extension. Members of one key stand one after the other.
"""

import os
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from vtool.data.containers.files import digest_of_files, not_readable, raise_found
from vtool.data.containers.tar_index import TarMember, find_members
from vtool.data.json_lines import row_object
from vtool.data.row import refuse, shown_value
from vtool.diagnostics import Diagnostic, Findings, Origin

_ROW = "json"
_PICTURES = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm"})
"""The last parts of extensions that are pictures."""
_KEY = re.compile(r"((?:.*/|)[^./]+)[.]([^/]+)", re.DOTALL)
_TAG = "<image>"
_PLACES = ("image", "path", "url")


class TarRows:
    """The rows of one tar. Only headers are read to find them."""

    def __init__(self, path: str, label: str | None = None, first: int | None = None) -> None:
        """Find the members of `path`.

        Args:
            label: the beginning of its rows' names, in place of the file's own name.
            first: not None where only rows at the beginning are looked at, and no digest is needed.

        Raises:
            Findings: `path-not-found`; `broken-row`, where it is cut off; `unpaired-member`.
        """
        self.path = Path(path)
        self.label = label or self.path.name
        self._descriptor: int | None = None
        self.rows = _TarIndex()
        try:
            with self.path.open("rb") as file:
                raise_found(_grouped(find_members(file, self.path), self.rows, self.path))
        except OSError as error:
            raise not_readable(self.path, error) from error
        self.digest = digest_of_files([self.path]) if first is None else ""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_descriptor": None}

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return f"{self.label}:{self.rows[index][0]}"

    def origin(self, index: int) -> Origin:
        """Return the place of row `index`, for findings."""
        return Origin(str(self.path))

    def record(self, index: int) -> dict[str, Any]:
        """Return row `index` as an object: what its JSON member has.

        Raises:
            Findings: `broken-row`, `unpaired-member`.
        """
        key, members = self.rows[index]
        if _ROW not in members:
            has = ", ".join(member.name for member in members.values())
            raise self._unpaired(index, f"there is {has}, and no {key}.{_ROW} with its row")
        other = [each for ext, each in members.items() if ext != _ROW and not _is_picture(ext)]
        if other:
            raise self._unpaired(
                index, f"{', '.join(each.name for each in other)} is neither a row nor a picture"
            )
        return row_object(self._bytes(members[_ROW]), self.name(index), self.origin(index))

    def complete(self, made: dict[str, Any], index: int) -> dict[str, Any]:
        """Return a row's messages with its pictures.

        A picture is taken where the row names its member, or its extension. Where the row names no
        picture, they are its list, in the tar's order; where it names one, and has one, it is that.

        Raises:
            Findings: `unpaired-member`, where a picture is left, or is not there.
        """
        members = {ext: each for ext, each in self.rows[index][1].items() if ext != _ROW}
        lists = (made.get("messages"), made.get("images") or [])
        if not all(isinstance(each, list) for each in lists):
            return made  # its reader refuses it
        if not members:
            listed = made.get("images") or made.get("image")
            if not listed and _waits_for_picture(made.get("messages")):
                raise self._unpaired(index, "it shows a picture, and there is none next to it")
            return made
        if (one := made.get("image")) and not made.get("images"):
            made = {**made, "images": one if isinstance(one, list) else [one], "image": None}
        taken: set[str] = set()
        named: list[str] = []

        def carried(given: Any) -> Any:
            """Return the picture that a path of the row names, or the path."""
            if not isinstance(given, str) or given.startswith("data:"):
                return given
            named.append(given)
            for ext, member in members.items():
                if given in (member.name, Path(member.name).name, ext):
                    taken.add(ext)
                    return self._picture(member)
            return given

        listed = made.get("images") or []
        done = {
            **made,
            "messages": [_with_parts(message, carried) for message in made["messages"]],
            **({"images": [carried(each) for each in listed]} if listed else {}),
        }
        if not named:
            return {**made, "images": [self._picture(each) for each in members.values()]}
        if not taken and len(members) == len(named) == 1 and len(listed) == 1:
            return {**made, "images": [self._picture(*members.values())]}
        if left := [each.name for ext, each in members.items() if ext not in taken]:
            what = f"{', '.join(left)} is not among the pictures that the row names"
            raise self._unpaired(index, f"{what}: {shown_value(', '.join(named))}")
        return done

    def describe(self) -> dict[str, Any]:
        return {"path": str(self.path), "sha256": self.digest, "rows": len(self)}

    def _picture(self, member: TarMember) -> dict[str, Any]:
        return {"bytes": self._bytes(member), "path": member.name}

    def _bytes(self, member: TarMember) -> bytes:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        return os.pread(self._descriptor, member.size, member.start)

    def _unpaired(self, index: int, what: str) -> Findings:
        return refuse("unpaired-member", f"{self.name(index)}: {what}", self.origin(index))


@dataclass(frozen=True, slots=True)
class _TarIndex:
    """The members of each row: their names, and 24 bytes for each; rows of 8 bytes."""

    names: bytearray = field(default_factory=bytearray)
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    """The end of each member's name in `names`."""
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    firsts: "array[int]" = field(default_factory=lambda: array("q"))
    """The first member of each row."""

    def add(self, member: TarMember, *, new_row: bool) -> None:
        """Add a member behind all others, to the last row or to a new one."""
        if new_row:
            self.firsts.append(len(self.ends))
        self.names.extend(member.name.encode("utf-8", "surrogateescape"))
        self.ends.append(len(self.names))
        self.starts.append(member.start)
        self.sizes.append(member.size)

    def __len__(self) -> int:
        return len(self.firsts)

    def __getitem__(self, index: int) -> tuple[str, dict[str, TarMember]]:
        """Return a row's key, and its members by their extensions."""
        first = self.firsts[index]
        behind = self.firsts[index + 1] if index + 1 < len(self) else len(self.ends)
        key, members = "", {}
        for at in range(first, behind):
            name = self.names[self.ends[at - 1] if at else 0 : self.ends[at]]
            member = TarMember(
                name.decode("utf-8", "surrogateescape"), self.starts[at], self.sizes[at]
            )
            found = _KEY.fullmatch(member.name)
            assert found, "members without a key are refused when the tar is opened"
            key, members[found[2].lower()] = found[1], member
        return key, members


def _grouped(members: Iterator[TarMember], rows: _TarIndex, path: Path) -> Iterator[Diagnostic]:
    """Put members into rows by their key, and yield what does not belong there."""
    seen: set[int] = set()  # digests, which take a quarter of what the keys do
    current: str | None = None
    extensions: set[str] = set()
    for member in members:
        found = _KEY.fullmatch(member.name)
        problem, new = None, False
        if found is None:
            problem = f"{member.name} has no key and extension, as 0001.json has"
        elif new := found[1] != current:
            digest = xxhash.xxh3_64_intdigest(found[1].encode("utf-8", "surrogateescape"))
            if digest in seen and any(rows[at][0] == found[1] for at in range(len(rows))):
                problem = f"{member.name} comes after members of other keys than {found[1]}"
            seen.add(digest)
            current, extensions = found[1], set()
        elif found[2].lower() in extensions:
            problem = f"{member.name} is there twice"
        if problem:
            yield Diagnostic("unpaired-member", f"{path}: {problem}", origin=Origin(str(path)))
        if found:
            extensions.add(found[2].lower())
            rows.add(member, new_row=new)


def _is_picture(extension: str) -> bool:
    return extension.rpartition(".")[2] in _PICTURES


def _waits_for_picture(messages: Any) -> bool:
    """Return whether a row that lists no picture shows one all the same."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str) and message.get("role") != "assistant" and _TAG in content:
            return True
        for part in content if isinstance(content, list) else ():
            is_image = isinstance(part, Mapping) and part.get("type") == "image"
            if is_image and all(part.get(key) is None for key in (*_PLACES, "source")):
                return True
    return False


def _with_parts(message: Any, carried: Any) -> Any:
    """Return a message whose parts have the tar's pictures in the place of their names."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": [_with_picture(part, carried) for part in content]}


def _with_picture(part: Any, carried: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    if part.get("type") == "image":
        source = part.get("source")
        if isinstance(source, Mapping) and source.get("type") == "url":
            found = carried(address := source.get("url"))
            return part if found is address else {"type": "image", "image": found}
        key = next((key for key in _PLACES if part.get(key) is not None), None)
        return {**part, key: carried(part[key])} if key else part
    if part.get("type") == "image_url":
        nested = part.get("image_url")
        if isinstance(nested, Mapping):
            return {**part, "image_url": {**nested, "url": carried(nested.get("url"))}}
        return {**part, "image_url": carried(nested)}
    return part
