"""The header of a safetensors file: 8 bytes of length, then that many bytes of JSON.

The tensors' bytes follow without a gap. Source: the format's description and
`SafeTensors::read_metadata` of https://github.com/huggingface/safetensors (0.8).
"""

import os
import reprlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from vtool.contents import content_of
from vtool.diagnostics import Diagnostic, Findings
from vtool.loading.checkpoint import strict_json
from vtool.loading.checkpoint.about_file import about_file
from vtool.loading.checkpoint.dtypes import BITS
from vtool.loading.words import listed

LARGEST_HEADER = 100_000_000
"""Bytes that safetensors itself accepts."""
_SHOWN_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file, which has the bytes `start` to `end` of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """The contents of a safetensors file, as its header declares them."""

    file: Path
    size: int
    """Bytes of the file, as it is on the disk."""
    tensors: tuple[Tensor, ...]
    """The tensors in the order of their bytes.

    Entries that make no sense are left out; some may lie beyond the end of a truncated file.
    """
    whole: bool
    """True if nothing was wrong with the header."""


def read_header(file: Path) -> tuple[Header | None, list[Diagnostic]]:
    """Return the header, None where it cannot be read, and findings about it."""
    try:
        # Not blocking: opening a FIFO would wait for someone to write to it.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                message = f"{file.name} is not a regular file"
                return None, [about_file(file, "unreadable-weights", message)]
            length = _length(descriptor, file, status.st_size)
            return _checked(file, status.st_size, 8 + length, *_content(descriptor, file, length))
        finally:
            os.close(descriptor)
    except OSError as error:
        message = f"{file.name} cannot be read: {error.strerror}"
        return None, [about_file(file, "unreadable-weights", message)]
    except Findings as findings:
        return None, list(findings.diagnostics)


def _length(descriptor: int, file: Path, size: int) -> int:
    """Return the length of the JSON in bytes.

    Raises:
        Findings: that cannot be the length; nothing of it was allocated.
    """

    def refuse(rule: str, message: str, help: str | None = None, **more: str) -> Findings:
        return Findings(about_file(file, rule, f"{file.name}{message}", help, **more))

    begin = os.pread(descriptor, 64, 0)
    # the length of a header has zeros in its upper half: no text and no other format does
    if (any(begin[4:8]) or not any(begin)) and (found := content_of(file)):
        rule = "bad-header" if size else "truncated-file"
        raise refuse(rule, f" {found.what}, not the weights", found.remedy)
    if len(begin) < 8:
        raise refuse(
            "truncated-file",
            f" has {size} bytes; a header's length alone takes 8",
            seen=f"{size} bytes",
        )
    length = int.from_bytes(begin[:8], "little")
    not_one = "it is no safetensors file, or its beginning is damaged: fetch it again"
    if length > LARGEST_HEADER:
        raise refuse(
            "bad-header",
            f" begins with {begin[:8]!r}, a header of {length:,} bytes; the format allows"
            f" {LARGEST_HEADER:,}",
            not_one,
        )
    # The format asks for { here; its reader also takes white space before it, as JSON does.
    first = begin[8:].lstrip(b" \t\r\n")[:1]
    if first not in (b"{", b""):
        raise refuse("bad-header", f": its header begins with {first!r}, not with {{", not_one)
    if 8 + length > size:
        raise refuse(
            "truncated-file",
            f" ends inside its header: {size:,} bytes are there, and the header takes"
            f" {8 + length:,}",
            expected=f"at least {8 + length} bytes",
            seen=f"{size} bytes",
        )
    return length


def _content(descriptor: int, file: Path, length: int) -> tuple[dict[str, Any], list[str]]:
    """Return the JSON object, and the keys that it has twice; raise Findings where it is none."""
    try:
        content, repeated = strict_json.parse_strict_json(
            os.pread(descriptor, length, 8), as_safetensors=True
        )
    except ValueError as error:
        message = f"{file.name}: its header is not JSON: {error}"
        raise Findings(about_file(file, "bad-header", message)) from error
    if not isinstance(content, dict):
        message = f"{file.name}: its header is not a JSON object"
        raise Findings(about_file(file, "bad-header", message))
    return content, repeated


def _checked(
    file: Path, size: int, data: int, content: dict[str, Any], repeated: list[str]
) -> tuple[Header, list[Diagnostic]]:
    problems = [(f"`{name}` is there twice, and readers take the last", name) for name in repeated]
    metadata = content.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        problems.append(("__metadata__ is not an object of strings", "__metadata__"))
    tensors = []
    for name, entry in content.items():
        try:
            tensors.append(_tensor(name, entry, data))
        except ValueError as error:
            problems.append((f"`{name}`: {error}", name))
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    # an entry that makes no sense leaves a gap, which would be reported a second time
    if not problems:
        problems += _gaps(tensors, data)
    findings = [
        about_file(file, "bad-header", f"{file.name}: {message}", tensors=(name,))
        for message, name in islice(problems, _SHOWN_PROBLEMS)
    ]
    if rest := tuple(name for _, name in problems[_SHOWN_PROBLEMS:]):
        message = f"{file.name}: {len(rest)} more entries like these"
        findings.append(about_file(file, "bad-header", message, tensors=rest))
    end = max((tensor.end for tensor in tensors), default=data)
    sizes = {"expected": f"{end} bytes", "seen": f"{size} bytes"}
    if end > size:
        cut = tuple(tensor.name for tensor in tensors if tensor.end > size)
        message = (
            f"{file.name} ends {end - size:,} bytes early, and {len(cut)} of its {len(tensors)}"
            f" tensors are cut off or gone: {listed(cut)}"
        )
        findings.append(about_file(file, "truncated-file", message, tensors=cut, **sizes))
    elif end < size and not problems:
        message = f"{file.name}: {size - end:,} bytes after the last tensor belong to none"
        findings.append(about_file(file, "bad-header", message, **sizes))
    return Header(file, size, tuple(tensors), whole=not findings), findings


def _tensor(name: str, entry: object, data: int) -> Tensor:
    """Return the tensor that a header's entry describes.

    Raises:
        ValueError: the entry makes no sense.
    """
    if not isinstance(entry, dict):
        raise ValueError("its entry is not an object")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"there is no dtype {reprlib.repr(dtype)}")
    shape, offsets = (_whole_numbers(entry, key) for key in ("shape", "data_offsets"))
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"its data_offsets {reprlib.repr(offsets)} are not a beginning and an end")
    begin, end = offsets
    if len(entry) > 3 and strict_json.depth(entry) >= strict_json.JSON_DEEPEST:
        raise ValueError(f"its entry is nested deeper than {strict_json.JSON_DEEPEST} levels")
    bits = _bits(shape, BITS[dtype])
    if bits != 8 * (end - begin):
        takes = f"{bits // 8:,} bytes" if bits % 8 == 0 else f"{bits:,} bits"
        raise ValueError(
            f"{dtype} {reprlib.repr(shape)} takes {takes}, and its data_offsets give it"
            f" {end - begin:,}"
        )
    return Tensor(name, dtype, tuple(shape), data + begin, data + end)


def _bits(shape: list[int], bits: int) -> int:
    """Return the bits of a tensor.

    Raises:
        ValueError: the sizes, without those that are 0, are more bytes than numpy makes an array
            of; the product of all of them was not made.
    """
    for size in filter(None, shape):
        bits *= size
        if bits >= 8 * 2**63:
            raise ValueError(f"its shape {reprlib.repr(shape)} is larger than any file")
    return 0 if 0 in shape else bits


def _whole_numbers(entry: dict[str, Any], key: str) -> list[int]:
    value = entry.get(key)
    if not isinstance(value, list) or not all(
        type(item) is int and 0 <= item < 2**63 for item in value
    ):
        raise ValueError(f"its {key}, {reprlib.repr(value)}, is not a list of whole numbers")
    return value


def _gaps(tensors: list[Tensor], data: int) -> Iterator[tuple[str, str]]:
    """Yield a message and a tensor for bytes that two tensors share, and for bytes of none."""
    position, before = data, ""
    for tensor in tensors:
        if tensor.start < position:
            yield (
                (
                    f"`{tensor.name}` overlaps `{before}` by"
                    f" {min(position, tensor.end) - tensor.start:,} bytes"
                ),
                tensor.name,
            )
        elif tensor.start > position:
            yield (
                f"{tensor.start - position:,} bytes before `{tensor.name}` belong to no tensor",
                tensor.name,
            )
        if tensor.end >= position:
            position, before = tensor.end, tensor.name
