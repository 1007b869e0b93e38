"""The audits of rows: one by one as objects, and all of them as columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from vtool.data.boxes import BOX, RowBoxes
from vtool.data.encode import Sample
from vtool.diagnostics import Diagnostic
from vtool.models.pictures import PICTURE_TRAITS

_CHUNK = 4096
"""Rows that are objects at once: those of a million would take some 400 MiB."""
_TRAIT_NAMES = tuple(PICTURE_TRAITS)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The marks that a file system gives a file whenever it is written or replaced."""

    device: int
    inode: int
    size: int
    modified: int
    """Nanoseconds."""
    changed: int
    """Nanoseconds: of the inode, which nobody can set back. 0 where it is not to be trusted."""


@dataclass(frozen=True, slots=True)
class RowAudit:
    """The audit of one row."""

    index: int
    tokens: int = 0
    supervised: int = 0
    images: int = 0
    videos: int = 0
    turns: int = 0
    answer: int = 0
    truncated: bool = False
    cut: int = 0
    ends: int = 0
    highest: int = 0
    """The highest of its token ids."""
    images_digest: int = 0
    digest: int = 0
    """XXH3 of token ids, labels, images and videos: what a batch must be made of."""
    question: int = 0
    """XXH3 of what is not learnt: its token ids, images and videos."""
    answer_digest: int = 0
    """XXH3 of the token ids that are learnt."""
    group: int = 0
    """XXH3 of what the row is about, by which it is held back (`vtool.data.splits`)."""
    given_id: int = 0
    """XXH3 of its file and the id that it has there; 0 where it has none."""
    text_traits: int = 0
    """Bits of `vtool.data.text_traits.TEXT_TRAITS`."""
    remarks: int = 0
    """Number of its remarks (`vtool.data.remarks`); 0 where it has none."""
    traits: tuple[str, ...] = ()
    """Names of `PICTURE_TRAITS`: the losses of its pictures."""
    boxes: RowBoxes | None = None
    """The boxes and points in its text; None where it has none."""
    finding: Diagnostic | None = None
    files: tuple[tuple[str, Stamp], ...] = ()
    """Image and video files, with the marks they had just before they were read."""

    @classmethod
    def of(cls, index: int, sample: Sample) -> "RowAudit":
        """Build an audit from the encoded row alone: everything but its files and findings."""
        return cls(
            index=index,
            tokens=len(sample.input_ids),
            supervised=sample.supervised,
            turns=len(sample.turns),
            answer=sample.answer,
            truncated=sample.truncated,
            cut=sample.cut,
            ends=sample.ends,
            highest=int(sample.input_ids.max()),
            traits=sample.traits,
        )


_NUMBERS = (
    *("tokens", "supervised", "images", "videos", "turns", "answer", "cut", "ends"),
    "highest",
)
_DIGESTS = ("images_digest", "digest", "question", "answer_digest", "given_id", "group")
ROW = np.dtype(
    [
        ("index", "<i8"),
        *((name, "<u4") for name in _NUMBERS),
        *((name, "<u8") for name in _DIGESTS),
        ("text_traits", "<u2"),
        ("remarks", "<u4"),
        ("traits", "<u2", (len(PICTURE_TRAITS),)),
        ("files", "<u2"),
        ("boxes", BOX),
        ("truncated", "?"),
        ("usable", "?"),
    ]
)
"""The columns of an audit: `files` counts them, `traits` its pictures as `PICTURE_TRAITS` names."""
STAMP = np.dtype([(name, "<i8") for name in Stamp.__slots__])


@dataclass(frozen=True, slots=True)
class RowAudits:
    """The audits of many rows."""

    table: NDArray[np.void]
    """A `ROW` for each, in the order of their numbers."""
    findings: Mapping[int, Diagnostic] = field(default_factory=dict)
    """Findings by the number of the row, which cannot be used."""
    paths: Sequence[str] = ()
    """Image and video files, in the order of the table."""
    stamps: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, STAMP))
    """A `STAMP` for each path."""
    reused: int = 0
    """Rows of an earlier audit, which were not looked at again."""

    @classmethod
    def of(cls, audits: Iterable[RowAudit]) -> "RowAudits":
        """Return audits as columns; of any number of them, few are objects at once."""
        return cls.joined(list(map(_columns, _chunks(iter(audits)))))

    @classmethod
    def joined(cls, parts: Sequence["RowAudits"]) -> "RowAudits":
        """Return the audits of all parts, ordered by their rows' numbers."""
        # of a million rows every copy is 100 MB
        parts = [part for part in parts if len(part)]
        if not parts:
            return cls(np.zeros(0, ROW))
        if len(parts) == 1 and np.all(np.diff(parts[0].table["index"]) > 0):
            return parts[0]
        table = np.concatenate([part.table for part in parts])
        stamps = np.concatenate([part.stamps for part in parts])
        paths = list(chain.from_iterable(part.paths for part in parts))
        order = np.argsort(table["index"], kind="stable")
        if not np.array_equal(order, np.arange(len(order))):
            counts = table["files"].astype(np.int64)
            begins = np.cumsum(counts) - counts
            counts, begins = counts[order], begins[order]
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            places = np.repeat(begins, counts) + within
            table, stamps = table[order], stamps[places]
            paths = [paths[place] for place in places.tolist()]
        findings = dict(sorted(chain.from_iterable(part.findings.items() for part in parts)))
        return cls(table, findings, paths, stamps, sum(part.reused for part in parts))

    def __len__(self) -> int:
        return len(self.table)

    def where(self, chosen: NDArray[np.bool_]) -> "RowAudits":
        """Return the audits of some rows."""
        owner = np.repeat(chosen, self.table["files"].astype(np.int64))
        table = self.table[chosen]
        there = set(table["index"].tolist()) if self.findings else set()
        return RowAudits(
            table,
            {index: finding for index, finding in self.findings.items() if index in there},
            [self.paths[place] for place in np.flatnonzero(owner).tolist()],
            self.stamps[owner],
            self.reused,
        )

    @property
    def usable(self) -> NDArray[np.void]:
        """The rows of the table that can be used: they have no finding."""
        if self.table["usable"].all():
            return self.table  # without a copy
        usable: NDArray[np.void] = self.table[self.table["usable"]]
        return usable

    def traits(self) -> dict[str, int]:
        """Return the pictures of usable rows that have a trait, by its name."""
        counts = self.usable["traits"].sum(axis=0, dtype=np.int64).tolist()
        return {name: count for name, count in zip(_TRAIT_NAMES, counts, strict=True) if count}


def _chunks(audits: Iterator[RowAudit]) -> Iterator[list[RowAudit]]:
    while chunk := list(islice(audits, _CHUNK)):
        yield chunk


def _columns(audits: Sequence[RowAudit]) -> RowAudits:
    table = np.zeros(len(audits), ROW)
    for name in ("index", *_NUMBERS, *_DIGESTS, "text_traits", "remarks", "truncated"):
        table[name] = [getattr(audit, name) for audit in audits]
    table["usable"] = [audit.finding is None for audit in audits]
    table["files"] = [len(audit.files) for audit in audits]
    for place, audit in enumerate(audits):
        for trait in audit.traits:
            table["traits"][place, _TRAIT_NAMES.index(trait)] += 1
        if audit.boxes is not None:
            table["boxes"][place] = audit.boxes.values()
    files = [file for audit in audits for file in audit.files]
    stamps = [
        (stamp.device, stamp.inode, stamp.size, stamp.modified, stamp.changed) for _, stamp in files
    ]
    return RowAudits(
        table,
        {audit.index: audit.finding for audit in audits if audit.finding},
        [path for path, _ in files],
        np.array(stamps, STAMP),
    )
