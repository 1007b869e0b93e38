"""Digests of rows: what an audit has seen is what a batch is made of."""

from itertools import chain
from pathlib import Path

import xxhash

from vtool.data.encode import Sample
from vtool.data.row import Row, refuse


def row_digests(row: Row, sample: Sample) -> tuple[int, int]:
    """Return the XXH3 of a row's image and video files, and of all that it is: 64 bits each.

    Of all: token ids, labels, and its images and videos, in files or in the row. What a rows file
    holds itself is in that file's digest, so the first leaves it out.
    """
    files = xxhash.xxh3_64()
    whole = xxhash.xxh3_64(sample.input_ids.numpy().tobytes())
    whole.update(sample.labels.numpy().tobytes())
    frames = (
        [video.source] if isinstance(video.source, str) else video.source for video in row.videos
    )
    for given in chain(row.images, *frames):
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
