"""The search for tensors that are in more than one file."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from vtool.diagnostics import Diagnostic
from vtool.loading.checkpoint.about_file import about_file
from vtool.loading.checkpoint.headers import Header, Tensor
from vtool.loading.words import listed

_PART = 1 << 20
_VARIANT = re.compile(r"model(-\d{5}-of-\d{5})?\.[a-zA-Z]\w*(-\d{5}-of-\d{5})?\.safetensors")
"""Names that transformers and diffusers give another precision of the same weights, as
model.fp16.safetensors.
"""


def find_duplicates(
    headers: Sequence[Header], indexed: frozenset[str] | None
) -> Iterator[Diagnostic]:
    """Yield one finding for each pair of files that have tensors in common.

    An error where their values differ, a warning where one of them is a variant by its name; a note
    where they are the same to the byte, so that it does not matter which a loader takes.

    Args:
        indexed: the names of the files that the index knows, None where there is no index.
    """
    by_file = {
        header.file: {tensor.name: tensor for tensor in header.tensors} for header in headers
    }
    for one, other in combinations(headers, 2):
        common = tuple(name for name in by_file[one.file] if name in by_file[other.file])
        if not common:
            continue
        differing = tuple(
            name
            for name in common
            if not _equal(one, by_file[one.file][name], other, by_file[other.file][name])
        )
        severity, values, help = "note", "the same values", None
        if differing:
            severity = "error"
            values = f"different values{_which_loader_reads(one, other, indexed)}"
            variants = [bool(_VARIANT.fullmatch(each.file.name)) for each in (one, other)]
            if any(variants) and not all(variants):
                severity = "warning"
                help = (
                    "keep it in a folder of its own, where loaders that read every file do not"
                    " find it"
                )
        shown = differing or common
        yield about_file(
            _stale(one, other, indexed).file,
            "duplicate-tensor",
            f"{one.file.name} and {other.file.name} both hold {listed(shown)}, with {values}",
            help,
            tensors=shown,
            severity=severity,
        )


def _stale(one: Header, other: Header, indexed: frozenset[str] | None) -> Header:
    """Return the file that does not belong.

    It is the one that the index does not know, or that is not model.safetensors.
    """
    if indexed is not None:
        return one if one.file.name not in indexed else other
    return one if other.file.name == "model.safetensors" else other


def _which_loader_reads(one: Header, other: Header, indexed: frozenset[str] | None) -> str:
    if "model.safetensors" in (one.file.name, other.file.name):
        follows = "the index's shards" if indexed else "nothing else"
        return (
            f": transformers reads model.safetensors and {'not ' if indexed else ''}{follows},"
            " other loaders every file, and keep the last"
        )
    if indexed is not None and not {one.file.name, other.file.name} <= indexed:
        return (
            f": the index does not know {_stale(one, other, indexed).file.name}, but loaders that"
            " read every *.safetensors do"
        )
    return ": a loader that reads every file keeps the last"


def _equal(left_file: Header, left: Tensor, right_file: Header, right: Tensor) -> bool:
    """Return True if two tensors have the same type, shape and bytes, and are not cut off."""
    if (
        (left.dtype, left.shape) != (right.dtype, right.shape)
        or left.end > left_file.size
        or right.end > right_file.size
    ):
        return False
    try:
        with (
            left_file.file.open("rb", buffering=0) as first,
            right_file.file.open("rb", buffering=0) as second,
        ):
            return all(
                os.pread(first.fileno(), size, left.start + offset)
                == os.pread(second.fileno(), size, right.start + offset)
                for offset in range(0, left.end - left.start, _PART)
                for size in (min(_PART, left.end - left.start - offset),)
            )
    except OSError:
        return False
