"""The comparison of `model.safetensors.index.json` with the headers of the shards it names."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vtool.diagnostics import Diagnostic
from vtool.loading.checkpoint import strict_json
from vtool.loading.checkpoint.about_file import about_file, why_not_json
from vtool.loading.checkpoint.files import is_weights
from vtool.loading.checkpoint.headers import LARGEST_HEADER, Header
from vtool.loading.words import listed
from vtool.model_folder import ModelFolder
from vtool.near_files import near_file

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


@dataclass(frozen=True, slots=True)
class Index:
    """An index: the file of every tensor."""

    file: Path
    shards: Mapping[str, tuple[str, ...]]
    """The tensors of each file, by the file's name."""
    total_size: object
    """Bytes of all tensors, as it claims. No loader relies on it."""


def read_index(file: Path) -> tuple[Index | None, list[Diagnostic]]:
    """Return the index, None where it cannot be used, and findings about the file by itself."""

    def bad(message: str, help: str | None = None) -> Diagnostic:
        return about_file(file, "index-mismatch", f"{file.name}: {message}", help)

    if not file.is_file():
        return None, [
            bad("it is not a regular file" if file.exists() else "it is a link to nothing")
        ]
    try:
        if file.stat().st_size > LARGEST_HEADER:
            return None, [bad(f"it is larger than {LARGEST_HEADER:,} bytes")]
        content, repeated = strict_json.parse_strict_json(
            ModelFolder(file.parent).content(file.name)
        )
    except OSError as error:
        return None, [bad(f"it cannot be read: {error.strerror}")]
    except ValueError as error:
        return None, [bad(*why_not_json(file, error))]
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        return None, [bad("its weight_map is not an object of file names")]
    findings = [bad(f"`{name}` is there twice, and readers take the last") for name in repeated]
    if not weight_map:
        findings.append(bad("it names no tensor, and loaders that follow it load none"))
    shards: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        shards.setdefault(name, []).append(tensor)
    for name in list(shards):
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            del shards[name]
            findings.append(bad(f"it names {name}, which is outside of the folder; not opened"))
    metadata = content.get("metadata")
    total_size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Index(file, {name: (*shards[name],) for name in shards}, total_size), findings


def compare_with_headers(
    index: Index, headers: Mapping[str, Header], unusable: Sequence[str]
) -> list[Diagnostic]:
    """Return findings about what index and headers disagree on.

    Args:
        headers: of the files that could be read, by their name as the index has it.
        unusable: files that are there, but whose header cannot be read: a finding of its own, which
            is not repeated here.
    """
    findings = []
    # a file that the index knows comes later, and so counts before one that it does not
    files = sorted(headers, key=lambda name: name in index.shards)
    where = {tensor.name: name for name in files for tensor in headers[name].tensors}
    for name, tensors in index.shards.items():
        if name in unusable:
            continue
        if name not in headers:
            message = (
                f"{name} is not there, and the index has {len(tensors)} tensors in it:"
                f" {listed(tensors)}"
            )
            near = near_file(name, index.file.parent)
            help = near.question if near else None
            findings.append(about_file(index.file, "missing-shard", message, help, tensors=tensors))
            continue
        inside = {tensor.name for tensor in headers[name].tensors}
        absent = [tensor for tensor in tensors if tensor not in inside]
        for tensor in filter(where.get, absent):
            findings.append(
                about_file(
                    index.file,
                    "index-mismatch",
                    f"the index has `{tensor}` in {name}, and it is in {where[tensor]}",
                    expected=name,
                    seen=where[tensor],
                    tensors=(tensor,),
                )
            )
        # A broken entry may be any of the tensors that seem to be missing.
        gone = tuple(tensor for tensor in absent if tensor not in where)
        if gone and headers[name].whole:
            message = f"the index has {listed(gone)} in {name}, and no file holds {_them(gone)}"
            findings.append(about_file(index.file, "index-mismatch", message, tensors=gone))
    known = {tensor for tensors in index.shards.values() for tensor in tensors}
    for name, header in headers.items():
        unknown = tuple(tensor.name for tensor in header.tensors if tensor.name not in known)
        # shards of an optimizer's state have an index of their own
        shard = _SHARD.fullmatch(name) and is_weights(header.file)
        if unknown and (name in index.shards or shard):
            message = (
                f"{name} holds {listed(unknown)}, which the index does not name: loaders that"
                f" follow the index skip {_them(unknown)}"
            )
            findings.append(about_file(header.file, "index-mismatch", message, tensors=unknown))
    if not findings and not unusable:
        findings += _total_size(index, headers)
    return findings


def _them(tensors: Sequence[str]) -> str:
    return "it" if len(tensors) == 1 else "them"


def _total_size(index: Index, headers: Mapping[str, Header]) -> Iterator[Diagnostic]:
    total = sum(
        tensor.end - tensor.start
        for name, header in headers.items()
        if name in index.shards
        for tensor in header.tensors
    )
    if index.total_size not in (None, total):
        yield about_file(
            index.file,
            "index-mismatch",
            f"{index.file.name} claims a total_size of {index.total_size!r}, and its shards'"
            f" tensors take {total} bytes; no loader relies on it",
            f'put "total_size": {total} into it',
            expected=str(total),
            seen=str(index.total_size),
            severity="note",
        )


def shards_without_index(folder: Path, names: Iterable[str]) -> Iterator[Diagnostic]:
    """Yield findings about files that are named as shards, where there is no index."""
    sets: dict[tuple[str, int], set[int]] = {}
    for match in filter(None, map(_SHARD.fullmatch, names)):
        sets.setdefault((match["stem"], int(match["count"])), set()).add(int(match["number"]))
    for (stem, count), numbers in sets.items():
        absent = [
            f"{stem}-{number:05}-of-{count:05}.safetensors"
            for number in range(1, min(count, 10_000) + 1)
            if number not in numbers
        ]
        if absent:
            message = (
                f"{listed(absent)} {'is' if len(absent) == 1 else 'are'} not there; the other"
                f" shards' names promise {count} files"
            )
            yield about_file(folder, "missing-shard", message)
        elif count > 1:
            message = (
                f"{count} shards {stem}-*.safetensors have no index: transformers does not find"
                f" them without {stem}.safetensors.index.json"
            )
            yield about_file(folder, "index-mismatch", message)
