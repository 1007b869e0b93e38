"""The comparison of `model.safetensors.index.json` with the headers of the shards it names."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vtool.diagnostics import Diagnostic, Origin
from vtool.loading.checkpoint import strict_json
from vtool.loading.checkpoint.headers import LARGEST_HEADER, Header
from vtool.loading.words import listed

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
    origin = Origin(str(file))

    def bad(message: str) -> Diagnostic:
        return Diagnostic("index-mismatch", f"{file.name}: {message}", origin=origin)

    if not file.is_file():
        return None, [
            bad("it is not a regular file" if file.exists() else "it is a link to nothing")
        ]
    try:
        if file.stat().st_size > LARGEST_HEADER:
            return None, [bad(f"it is larger than {LARGEST_HEADER:,} bytes")]
        content, repeated = strict_json.parse(file.read_bytes())
    except OSError as error:
        return None, [bad(f"it cannot be read: {error.strerror}")]
    except ValueError as error:
        return None, [bad(f"it is not JSON: {error}")]
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        return None, [bad("its weight_map is not an object of file names")]
    findings = [bad(f"`{name}` is there twice, and readers take the last") for name in repeated]
    shards: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        shards.setdefault(name, []).append(tensor)
    outside = [
        name
        for name in shards
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts
    ]
    findings += [
        bad(f"it names {name}, which is outside of the folder; not opened") for name in outside
    ]
    metadata = content.get("metadata")
    kept = {name: tuple(tensors) for name, tensors in shards.items() if name not in outside}
    return (
        Index(file, kept, metadata.get("total_size") if isinstance(metadata, dict) else None),
        findings,
    )


def compare_with_headers(
    index: Index, headers: Mapping[str, Header], unusable: Iterable[str]
) -> list[Diagnostic]:
    """Return findings about what index and headers disagree on.

    Args:
        headers: of the files that could be read, by their name as the index has it.
        unusable: files that are there, but whose header cannot be read: a finding of its own, which
            is not repeated here.
    """
    origin = Origin(str(index.file))
    unusable = set(unusable)
    findings = []
    where = {
        tensor.name: name
        for name, header in headers.items()
        if name in index.shards
        for tensor in header.tensors
    }
    strays = {
        tensor.name: name
        for name, header in headers.items()
        if name not in index.shards
        for tensor in header.tensors
    }
    for name, tensors in index.shards.items():
        if name in unusable:
            continue
        if name not in headers:
            message = (
                f"{name} is not there, and the index has {len(tensors)} tensors in it:"
                f" {listed(tensors)}"
            )
            findings.append(Diagnostic("missing-shard", message, origin=origin, tensors=tensors))
            continue
        header = headers[name]
        inside = {tensor.name for tensor in header.tensors}
        absent = tuple(tensor for tensor in tensors if tensor not in inside)
        elsewhere = {
            tensor: where.get(tensor) or strays[tensor]
            for tensor in absent
            if tensor in where or tensor in strays
        }
        for tensor, other in elsewhere.items():
            message = f"the index has `{tensor}` in {name}, and it is in {other}"
            findings.append(
                Diagnostic(
                    "index-mismatch",
                    message,
                    origin=origin,
                    expected=name,
                    seen=other,
                    tensors=(tensor,),
                )
            )
        # A broken entry may be any of the tensors that seem to be missing.
        if header.whole and (gone := tuple(tensor for tensor in absent if tensor not in elsewhere)):
            message = (
                f"the index has {listed(gone)} in {name}, and no file holds"
                f" {'it' if len(gone) == 1 else 'them'}"
            )
            findings.append(Diagnostic("index-mismatch", message, origin=origin, tensors=gone))
    known = {tensor for tensors in index.shards.values() for tensor in tensors}
    for name, header in headers.items():
        unknown = tuple(tensor.name for tensor in header.tensors if tensor.name not in known)
        if unknown and (name in index.shards or _SHARD.fullmatch(name)):
            message = (
                f"{name} holds {listed(unknown)}, which the index does not name: loaders that "
                "follow the index skip " + ("it" if len(unknown) == 1 else "them")
            )
            findings.append(
                Diagnostic(
                    "index-mismatch", message, origin=Origin(str(header.file)), tensors=unknown
                )
            )
    if not findings and not unusable:
        findings += _total_size(index, headers)
    return findings


def _total_size(index: Index, headers: Mapping[str, Header]) -> list[Diagnostic]:
    total = sum(
        tensor.end - tensor.start
        for name, header in headers.items()
        if name in index.shards
        for tensor in header.tensors
    )
    if index.total_size is None or index.total_size == total:
        return []
    message = (
        f"{index.file.name} claims a total_size of {index.total_size!r}, and its shards' tensors"
        f" take {total} bytes; no loader relies on it"
    )
    help = f'put "total_size": {total} into it'
    return [
        Diagnostic(
            "index-mismatch",
            message,
            help,
            None,
            Origin(str(index.file)),
            str(total),
            str(index.total_size),
            severity="note",
        )
    ]


def shards_without_index(folder: Path, names: Iterable[str]) -> list[Diagnostic]:
    """Return findings about files that are named as shards, where there is no index."""
    findings = []
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
            findings.append(Diagnostic("missing-shard", message, origin=Origin(str(folder))))
        elif count > 1:
            message = (
                f"{count} shards {stem}-*.safetensors have no index: transformers does not find"
                f" them without {stem}.safetensors.index.json"
            )
            findings.append(Diagnostic("index-mismatch", message, origin=Origin(str(folder))))
    return findings
