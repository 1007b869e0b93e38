"""Digests of rows: what an audit has seen is what a batch is made of."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from vtool.data.chat import IGNORED
from vtool.data.encode import Sample
from vtool.data.groups import group_of_media, group_of_text
from vtool.data.row import Row, refuse
from vtool.data.row_audits import Stamp

_PIECE = 2**20
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


def id_of(row: Row) -> int:
    """Return the digest of a row's file and the id that it has there; 0 where it has none.

    Each file of a folder may number its rows from 1.
    """
    if not row.given_id:
        return 0
    file = row.origin.file if row.origin else ""
    return xxhash.xxh3_64_intdigest(f"{file}\0{row.given_id}".encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Digests:
    """The XXH3 of parts of a row, 64 bits each."""

    files: int
    """Image and video files. What a rows file holds itself is in that file's digest."""
    whole: int
    """Token ids, labels, images and videos, be they in files, in the row or in memory."""
    question: int
    """The part that is not learnt: its token ids, images and videos."""
    answer: int
    """The token ids that are learnt."""
    group: int
    """The row's first picture or video, else its first question: what it is about."""


def digests_of(row: Row, sample: Sample) -> Digests:
    """Return the digests of a row, whose files are read for them."""
    files, media = xxhash.xxh3_64(), xxhash.xxh3_64()
    group = row.group
    for given in _media(row):
        if isinstance(given, str) and not given.startswith("data:"):
            of_file = _update_with_file(given, files, media)
            group = of_file if group is None else group
            continue
        if isinstance(given, str | bytes):
            content = given.encode() if isinstance(given, str) else given
        else:
            content = np.asarray(given).tobytes()
        if group is None:
            group = group_of_media(given, content)
        media.update(len(content).to_bytes(8, "little"))
        media.update(content)
    ids, labels = sample.input_ids.numpy(), sample.labels.numpy()
    learnt, seen = labels != IGNORED, media.digest()
    return Digests(
        files.intdigest(),
        xxhash.xxh3_64_intdigest(ids.tobytes() + labels.tobytes() + seen),
        xxhash.xxh3_64_intdigest(ids[~learnt].tobytes() + seen),
        xxhash.xxh3_64_intdigest(ids[learnt].tobytes()),
        group_of_text(row) if group is None else group,
    )


def _update_with_file(path: str, files: Any, media: Any) -> int:
    """Add a file, of which a piece is in memory, to two digests; return its own."""
    own = xxhash.xxh3_64()
    with open(path, "rb", buffering=0) as file:
        media.update(os.fstat(file.fileno()).st_size.to_bytes(8, "little"))
        while piece := file.read(_PIECE):
            for digest in (own, files, media):
                digest.update(piece)
    return own.intdigest()


def check_unchanged(row: Row, sample: Sample, audited: int) -> None:
    """Hold an encoded row against the digest that its audit had.

    Raises:
        Findings: `row-changed`.
    """
    if digests_of(row, sample).whole != audited:
        raise refuse(
            "row-changed",
            f"{row.id} is not what was audited: its text, or an image or video file of it, has"
            " changed since the run has started",
            row.origin,
        )
