"""Digests of rows: what an audit has seen is what a batch is made of."""

from itertools import chain
from pathlib import Path

import xxhash

from vtool.data.encode import Sample
from vtool.data.row import Row, refuse


def media_digest(row: Row) -> int:
    """Return the XXH3 of a row's image and video files, 64 bits.

    What a rows file holds itself is in that file's digest.
    """
    digest = xxhash.xxh3_64()
    frames = (
        [video.source] if isinstance(video.source, str) else video.source for video in row.videos
    )
    for file in chain(row.images, *frames):
        if isinstance(file, str) and not file.startswith("data:"):
            digest.update(Path(file).read_bytes())
    return digest.intdigest()


def sample_digest(sample: Sample, media: int) -> int:
    """Return the XXH3 of a row's token ids, labels and files, 64 bits."""
    digest = xxhash.xxh3_64(sample.input_ids.numpy().tobytes())
    digest.update(sample.labels.numpy().tobytes())
    digest.update(media.to_bytes(8, "little"))
    return digest.intdigest()


def check_unchanged(row: Row, sample: Sample, audited: int) -> None:
    """Hold an encoded row against the digest that its audit had.

    Raises:
        Findings: `row-changed`.
    """
    if sample_digest(sample, media_digest(row)) != audited:
        raise refuse(
            "row-changed",
            f"{row.id} is not what was audited: its text, or an image or video file of it, has"
            " changed since the run has started",
            row.origin,
        )
