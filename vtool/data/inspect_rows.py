"""Inspection of rows: each is encoded and checked, many of them by one call of the tokenizer."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from traceback import extract_tb

from torch.utils.data import DataLoader, Dataset, get_worker_info

from vtool.data.boxes import row_boxes
from vtool.data.chat import all_texts
from vtool.data.digest import digests_of, files_of, id_of, stamp
from vtool.data.encode import Sample, encode_rows
from vtool.data.labels import check_features, check_labels, decode_labels
from vtool.data.loader import EncodedRows
from vtool.data.remarks import digest_of_remarks
from vtool.data.row import Row, shown_value
from vtool.data.row_audits import RowAudit, RowAudits, Stamp
from vtool.data.sources import Rows
from vtool.data.text_traits import traits_of
from vtool.data.worker_failures import RowsInWork, end_with_parent, with_named_failures
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.progress import tick

AUDIT_CACHE_BYTES = 64 * 2**20
"""The part of a process's encoded rows that the audit may take: what it encodes is not again."""
_AT_ONCE = 256
_MOST_AT_ONCE = 4 * 2**20
"""Characters and bytes of rows that are in memory at once."""


def inspect_rows(rows: EncodedRows, indices: Sequence[int], workers: int) -> RowAudits:
    """Encode and check rows, in as many processes as `data.workers` says.

    A chat template that takes too long ends it: the others would wait for it as long.
    """
    audits = partial(RowAudits.of, _inspected(rows, indices, workers))
    return with_named_failures(audits, lambda: rows.in_work, rows.rows.name)


def _inspected(rows: EncodedRows, indices: Sequence[int], workers: int) -> Iterator[RowAudit]:
    # the workers get about as many groups each, also of few rows
    size = max(1, min(_AT_ONCE, len(indices) // (4 * workers))) if workers else _AT_ONCE
    groups = [tuple(indices[at : at + size]) for at in range(0, len(indices), size)]
    done = 0
    rows.in_work = RowsInWork(workers) if workers else None
    for audits in DataLoader(
        _Inspector(rows),
        None,
        sampler=groups,
        num_workers=workers,
        worker_init_fn=partial(end_with_parent, os.getpid()),
    ):
        yield from audits
        done += len(audits)
        tick(done, len(indices), "rows")
        if audits and _is_last(audits[-1]):
            break
    rows.in_work = None


def _is_last(audit: RowAudit) -> bool:
    return audit.finding is not None and audit.finding.rule == "template-too-costly"


@dataclass(frozen=True, slots=True)
class _Read:
    """A row as its file has it, with the marks that its files had just before."""

    index: int
    row: Row
    files: tuple[tuple[str, Stamp], ...]
    size: int
    """Characters of text, tools and reasoning included, and bytes of pictures in the row."""

    @classmethod
    def of(cls, index: int, row: Row) -> "_Read":
        files = tuple((file, stamp(file)) for file in files_of(row))
        carried = (len(one) for one in row.images if isinstance(one, str | bytes))
        return cls(index, row, files, sum(map(len, all_texts(row))) + sum(carried))


@dataclass(slots=True)
class _Inspector(Dataset[list[RowAudit]]):
    rows: EncodedRows
    room: bool = True
    """If encoded rows may be kept."""

    def __getitem__(self, indices: Sequence[int]) -> list[RowAudit]:
        """Return the audits of rows, in their order, up to one that has to be the last."""
        made: list[RowAudit] = []
        for group in self._groups(indices):
            made += self._inspect(group)
            if made and _is_last(made[-1]):
                break
        self.rows.mark(-1)
        return made

    def _groups(self, indices: Sequence[int]) -> Iterator[list[_Read | RowAudit]]:
        """Yield rows that are looked at together, read when they are asked for."""
        group: list[_Read | RowAudit] = []
        size = 0
        for index in indices:
            read = self._read(index)
            alone = isinstance(read, _Read) and self._is_alone(read.row)
            added = read.size if isinstance(read, _Read) else 0
            if group and (alone or size + added > _MOST_AT_ONCE):
                yield group
                group, size = [], 0
            group.append(read)
            size += _MOST_AT_ONCE if alone else added
        yield group

    def _is_alone(self, row: Row) -> bool:
        """Return whether a row is looked at by itself: it may be large once it is decoded."""
        return bool(row.videos) or (self._keeping() and bool(row.images))

    def _keeping(self) -> bool:
        # What is encoded here is not encoded again, while there is room; a data worker's memory
        # goes away with it.
        return self.room and get_worker_info() is None

    def _read(self, index: int) -> _Read | RowAudit:
        self.rows.mark(index)
        try:
            return _Read.of(index, self.rows.rows.row(index))
        except MemoryError:  # of the machine, not of the row
            raise
        except Exception as error:
            return self._failed(index, error)

    def _inspect(self, group: Sequence[_Read | RowAudit]) -> list[RowAudit]:
        """Return the audits of rows; those that could not be read have theirs already."""
        rows, keeping = self.rows, self._keeping()
        reads = [read for read in group if isinstance(read, _Read)]
        new = [(read.index, read.row) for read in reads if read.index not in rows.cache]
        encoded = iter(
            encode_rows(new, rows.processor, rows.settings, measure=not keeping, begin=rows.mark)
        )
        samples: dict[int, Sample] = {}
        made = {read.index: read for read in group if isinstance(read, RowAudit)}
        for read in reads:
            sample = rows.cache.get(read.index) or next(encoded, None)
            if isinstance(sample, Exception):
                made[read.index] = self._failed(read.index, sample)
            elif sample is not None:
                samples[read.index] = sample
                if keeping and read.index not in rows.cache:
                    keeping = self.room = rows.keep(sample, AUDIT_CACHE_BYTES)
        words = self._words(samples)
        for read in reads:
            if read.index in samples:
                made[read.index] = self._checked(read, samples[read.index], words.get(read.index))
        audits = [made[one.index] for one in group if one.index in made]
        last = next((place for place, audit in enumerate(audits) if _is_last(audit)), len(audits))
        return audits[: last + 1]

    def _words(self, samples: Mapping[int, Sample]) -> dict[int, str]:
        """Return the text of each row's labels; none where they are not decoded together."""
        try:
            decoded = decode_labels(list(samples.values()), self.rows.processor)
        except MemoryError:
            raise
        except Exception:  # `check_labels` finds out whose it is
            return {}
        return dict(zip(samples, decoded, strict=True))

    def _checked(self, read: _Read, sample: Sample, decoded: str | None) -> RowAudit:
        processor, row = self.rows.processor, read.row
        try:
            digests = digests_of(row, sample)
            finding = check_features(sample, processor, row) or check_labels(
                sample, processor, row, decoded
            )
            return replace(
                RowAudit.of(read.index, sample),
                images=len(row.images),
                videos=len(row.videos),
                images_digest=digests.files,
                digest=digests.whole,
                question=digests.question,
                answer_digest=digests.answer,
                group=digests.group,
                given_id=id_of(row),
                text_traits=traits_of(row, sample.turns),
                remarks=digest_of_remarks(row, str(processor.tokenizer.chat_template)),
                boxes=row_boxes(row, processor.pictures.upright_size, processor.resized),
                files=read.files,
                finding=finding,
            )
        except MemoryError:
            raise
        except Exception as error:
            return self._failed(read.index, error)

    def _failed(self, index: int, error: Exception) -> RowAudit:
        if isinstance(error, Findings):
            return RowAudit(index, finding=error.diagnostics[0])
        return RowAudit(index, finding=_unforeseen(self.rows.rows, index, error))


def _unforeseen(rows: Rows, index: int, error: Exception) -> Diagnostic:
    """Return the finding for an exception that no check foresaw.

    It may be a defect of vtool, so the message says where it was raised.
    """
    own = Path(__file__).parents[1]
    calls = extract_tb(error.__traceback__)
    ours = [call for call in calls if Path(call.filename).is_relative_to(own)]
    raised = "/".join(Path(calls[-1].filename).parts[-3:])
    where = f"raised at {raised}:{calls[-1].lineno}"
    if ours and ours[-1] is not calls[-1]:
        where += f", called at {Path(ours[-1].filename).relative_to(own.parent)}:{ours[-1].lineno}"
    message = (
        f"{rows.name(index)}: looking at the row raised {type(error).__name__}:"
        f" {shown_value(error)} ({where})"
    )
    origin = None
    with suppress(Exception):  # it may be what raised
        origin = rows.row(index).origin
    help = (
        "see what this row has that others have not; where it is in order, this is a defect of"
        " vtool: report it with these words"
    )
    return Diagnostic("broken-row", message, origin=origin, help=help)
