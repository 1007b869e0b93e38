"""Checks of rows that can all be used: repeated ones, ones that splits share, odd texts."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtool.config.schema import Data
from vtool.data.row_audits import RowAudits
from vtool.data.sources import Rows
from vtool.data.text_traits import FRAMES_WITHOUT_RATE, TEXT_TRAITS
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.printable import Lines

_LISTED = 20
"""Rows that a finding names where each counts; a note names three."""
_FEW = 20
"""Rows below which it is not reported how often an answer comes."""
_MUCH = 1.25
"""Times the longest row, or the shortest, from which on another length is reported."""
_BY_CHANCE = 1e-4
"""The chance at which lengths that a split does not have are reported."""


def split_findings(
    split: str, settings: Data, rows: Rows, audits: RowAudits, rate: float | None = None
) -> Iterator[Diagnostic]:
    """Yield the findings about the rows of one split: their texts, copies, ids and answers.

    Args:
        rate: the frames a second that listed frames without `fps` are taken to have; None: the
            model is not shown their times.
    """
    table = audits.usable
    # data.root says where they are expected, and a row with another one is refused
    but = ["files-outside-folder"] if settings.root else []
    if rate is None or settings.video.fps is not None:
        but.append(FRAMES_WITHOUT_RATE)
    yield from _of_text(split, rows, table, but, rate)
    yield from _duplicates(split, rows, table)
    yield from _repeated_ids(split, rows, table)
    yield from _two_answers(split, rows, table)
    if split == "train":
        yield from _one_answer(split, rows, table)


def cross_split_findings(
    settings: Data, rows: Mapping[str, Rows], audits: Mapping[str, RowAudits]
) -> dict[str, tuple[Diagnostic, ...]]:
    """Return, by split, the rows and pictures that it shares with the training split."""
    train = audits["train"].usable
    return {
        split: tuple(
            chain(
                _shared_rows(split, settings, rows, audits[split].usable, train),
                _shared_pictures(split, rows, audits[split].usable, train),
                _unseen_lengths(split, rows, audits[split].usable, train),
            )
        )
        for split in audits
        if split != "train"
    }


def _shared_rows(
    split: str,
    settings: Data,
    rows: Mapping[str, Rows],
    mine: NDArray[np.void],
    train: NDArray[np.void],
) -> Iterator[Diagnostic]:
    shared, places = _in_common(mine["digest"], train["digest"])
    if not len(shared):
        return
    pairs = [
        f"{rows[split].name(int(mine['index'][at]))} is"
        f" {rows['train'].name(int(train['index'][other]))}"
        for at, other in zip(shared[:_LISTED].tolist(), places.tolist(), strict=False)
    ]
    more = [f"… and {len(shared) - _LISTED:,} more"] if len(shared) > _LISTED else []
    heading = f"data.{split}: {len(shared):,} of {len(mine):,} rows are also trained on:"
    refused = split == "test" and len(shared) > settings.max_overlap_rows
    yield Diagnostic(
        "rows-in-two-splits",
        Lines.of(heading, [*pairs, *more]),
        parameter="data.max_overlap_rows" if refused else f"data.{split}",
        severity="error" if refused else "warning",
    )


def _shared_pictures(
    split: str, rows: Mapping[str, Rows], mine: NDArray[np.void], train: NDArray[np.void]
) -> Iterator[Diagnostic]:
    known = train["images_digest"][train["files"] > 0]
    same_row, _ = _in_common(mine["digest"], train["digest"])
    seen = (mine["files"] > 0) & np.isin(mine["images_digest"], known)
    seen[same_row] = False
    if at := np.flatnonzero(seen).tolist():
        yield Diagnostic(
            "pictures-in-two-splits",
            f"data.{split}: {len(at):,} of {len(mine):,} rows ask something else about pictures"
            f" that are trained on ({_first(rows[split], mine, at)})",
            parameter=f"data.{split}",
        )


def _unseen_lengths(
    split: str, rows: Mapping[str, Rows], mine: NDArray[np.void], train: NDArray[np.void]
) -> Iterator[Diagnostic]:
    """Yield a note where chance does not explain how many rows are longer than all evaluated ones.

    Of n rows drawn as the others are, all are at most so long that a share s of these is longer
    with a chance of (1 - s)^n.
    """
    if split != "validation" or not len(mine) or not len(train):
        return
    share = 1 - _BY_CHANCE ** (1 / len(mine))
    least, most = int(mine["tokens"].min()), int(mine["tokens"].max())
    parts = []
    for word, at in (
        ("longer", np.flatnonzero(train["tokens"] > most * _MUCH)),
        ("shorter", np.flatnonzero(train["tokens"] * _MUCH < least)),
    ):
        if len(at) > share * len(train):
            parts.append(f"{len(at):,} are much {word} ({_first(rows['train'], train, at)})")
    if parts:
        yield Diagnostic(
            "lengths-not-validated",
            f"data.{split}: its {len(mine):,} rows have {least:,} to {most:,} tokens; of the"
            f" {len(train):,} rows of data.train {' and '.join(parts)}",
            parameter=f"data.{split}",
        )


def _in_common(mine: NDArray[Any], others: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the places of values that others have too, and the place of each among these."""
    if not len(mine) or not len(others):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(others, kind="stable")
    found = np.searchsorted(others, mine, sorter=order).clip(max=len(others) - 1)
    same = others[order[found]] == mine
    return np.flatnonzero(same), order[found][same]


def _of_text(
    split: str, rows: Rows, table: NDArray[np.void], but: Sequence[str], rate: float | None
) -> Iterator[Diagnostic]:
    by_rule: dict[str, list[str]] = {}
    for place, trait in enumerate(TEXT_TRAITS):
        at = np.flatnonzero(table["text_traits"] & (1 << place))
        if len(at) and trait.rule not in but:
            made_up = f", taken as {rate:g} a second" if trait.rule == FRAMES_WITHOUT_RATE else ""
            named = f"{len(at):,} {trait.words}{made_up} ({_first(rows, table, at)})"
            by_rule.setdefault(trait.rule, []).append(named)
    for rule, parts in by_rule.items():
        yield Diagnostic(
            rule,
            f"data.{split}: of {len(table):,} rows, {'; '.join(parts)}",
            parameter=f"data.{split}",
        )


def repeated(table: NDArray[np.void]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the places of rows that are there before, and the place of the first of each."""
    _, first, inverse = np.unique(table["digest"], return_index=True, return_inverse=True)
    again = np.flatnonzero(first[inverse] != np.arange(len(table)))
    return again, first[inverse[again]]


def _duplicates(split: str, rows: Rows, table: NDArray[np.void]) -> Iterator[Diagnostic]:
    again, first = repeated(table)
    if len(again):
        pairs = ", ".join(
            f"{rows.name(int(table['index'][at]))} is {rows.name(int(table['index'][before]))}"
            for at, before in zip(again[:3].tolist(), first[:3].tolist(), strict=True)
        )
        yield Diagnostic(
            "duplicate-rows",
            f"data.{split}: {len(again):,} of {len(table):,} rows are there before, in text and"
            f" pictures ({pairs}{', …' if len(again) > 3 else ''})",
            parameter=f"data.{split}",
        )


def _repeated_ids(split: str, rows: Rows, table: NDArray[np.void]) -> Iterator[Diagnostic]:
    """Yield a note on rows of a file that have an id which a row before them has."""
    having = np.flatnonzero(table["given_id"])
    _, first, inverse = np.unique(table["given_id"][having], return_index=True, return_inverse=True)
    again = np.flatnonzero(first[inverse] != np.arange(len(having)))
    if len(again):
        before = having[first[inverse[again]]]
        pairs = ", ".join(
            f"{rows.name(int(table['index'][at]))} has that of"
            f" {rows.name(int(table['index'][other]))}"
            for at, other in zip(having[again[:3]].tolist(), before[:3].tolist(), strict=True)
        )
        yield Diagnostic(
            "repeated-ids",
            f"data.{split}: {len(again):,} of {len(having):,} rows with an id have one that a row"
            f" of their file had before ({pairs}{', …' if len(again) > 3 else ''})",
            parameter=f"data.{split}",
        )


def _two_answers(split: str, rows: Rows, table: NDArray[np.void]) -> Iterator[Diagnostic]:
    """Yield a note on questions, with their pictures, that rows answer differently."""
    both = np.unique(np.stack([table["question"], table["answer_digest"]], axis=1), axis=0)
    questions, answers = np.unique(both[:, 0], return_counts=True)
    several = questions[answers > 1]
    if len(several):
        at = np.flatnonzero(np.isin(table["question"], several))
        yield Diagnostic(
            "several-answers",
            f"data.{split}: questions with several answers: {len(several):,}, in {len(at):,} rows"
            f" ({_first(rows, table, at[np.argsort(table['question'][at], kind='stable')])})",
            parameter=f"data.{split}",
        )


def _one_answer(split: str, rows: Rows, table: NDArray[np.void]) -> Iterator[Diagnostic]:
    if len(table) < _FEW:
        return
    answers, counts = np.unique(table["answer_digest"], return_counts=True)
    most = int(counts.argmax())
    if counts[most] > len(table) / 2:
        at = np.flatnonzero(table["answer_digest"] == answers[most])
        yield Diagnostic(
            "one-answer",
            f"data.{split}: {len(at):,} of {len(table):,} rows have one and the same answer"
            f" ({_first(rows, table, at)})",
            parameter=f"data.{split}",
        )


def _first(rows: Rows, table: NDArray[np.void], places: Sequence[int] | NDArray[Any]) -> str:
    named = [rows.name(int(table["index"][at])) for at in list(places[:3])]
    return ", ".join(named) + (", …" if len(places) > 3 else "")
