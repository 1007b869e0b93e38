"""Digests of rows: what an audit has seen is what a batch is made of."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from vtool.data.encode import Sample
from vtool.data.row import Row, refuse
from vtool.data.row_audits import Stamp

SETTLED = 2_000_000_000
"""Nanoseconds after which a file's marks are trusted."""


def files_of(row: Row) -> list[str]:
    """Return the image and video files of a row."""
    return [one for one in _media(row) if isinstance(one, str) and not one.startswith("data:")]


def stamp(file: str) -> Stamp:
    """Return the marks of a file, as its system has them; one that changes just now has none."""
    try:
        found = os.stat(file)
    except OSError:  # who reads it says so
        return Stamp(0, 0, 0, 0, 0)
    # clocks of file systems are coarse: another change might leave the same marks
    settled = time.time_ns() - found.st_ctime_ns > SETTLED
    changed = found.st_ctime_ns if settled else 0
    return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, changed)


def _media(row: Row) -> Iterator[Any]:
    yield from row.images
    for video in row.videos:
        yield from [video.source] if isinstance(video.source, str) else video.source


def row_digests(row: Row, sample: Sample) -> tuple[int, int]:
    """Return the XXH3 of a row's image and video files, and of all that it is: 64 bits each.

    Of all: token ids, labels, and its images and videos, in files or in the row. What a rows file
    holds itself is in that file's digest, so the first leaves it out.
    """
    files = xxhash.xxh3_64()
    whole = xxhash.xxh3_64(sample.input_ids.numpy().tobytes())
    whole.update(sample.labels.numpy().tobytes())
    for given in _media(row):
        if isinstance(given, str) and not given.startswith("data:"):
            content = Path(given).read_bytes()
            files.update(content)
        elif isinstance(given, str | bytes):
            content = given.encode() if isinstance(given, str) else given
        else:
            continue  # in memory, where nobody else writes
        whole.update(len(content).to_bytes(8, "little"))
        whole.update(content)
    return files.intdigest(), whole.intdigest()


def check_unchanged(row: Row, sample: Sample, audited: int) -> None:
    """Hold an encoded row against the digest that its audit had.

    Raises:
        Findings: `row-changed`.
    """
    if row_digests(row, sample)[1] != audited:
        raise refuse(
            "row-changed",
            f"{row.id} is not what was audited: its text, or an image or video file of it, has"
            " changed since the run has started",
            row.origin,
        )
