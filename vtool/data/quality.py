"""Checks of rows that can all be used: repeated ones, ones that splits share, odd texts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtool.config.schema import Data
from vtool.data.row import Row
from vtool.data.row_audits import RowAudits
from vtool.data.sources import Rows
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.printable import Lines

LISTED = 20
"""Rows that a finding names where each counts; a note names three."""
_FEW = 20
"""Rows below which nothing is said of how often an answer comes."""
_OF_OTHER_MODELS = re.compile(
    r"\[/?INST\]|<</?SYS>>|</?s>|<\|(?:im_start|im_end|endoftext|eot_id|begin_of_text|end_of_text"
    r"|start_header_id|end_header_id|user|assistant|system|end)\|>|<(?:start|end)_of_turn>"
)
# UTF-8 that was read as cp1252: `Ã©` for `é`, `â€™` for `’`.
_DOUBLY_ENCODED = re.compile("[ÂÃ][\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|â€[\x80-\xbf™œ“”˜¢¦]")


def _late_system(row: Row) -> bool:
    return any(message["role"] == "system" for message in row.messages[1:])


def _two_user_turns(row: Row) -> bool:
    roles = [message["role"] for message in row.messages]
    return any(pair == ("user", "user") for pair in pairwise(roles))


def _is_doubly_encoded(text: str) -> bool:
    """Check for several signs of it: one alone may be meant."""
    return not text.isascii() and len(_DOUBLY_ENCODED.findall(text)) > 1


@dataclass(frozen=True, slots=True)
class Trait:
    """Something that a row's text may have."""

    rule: str
    words: str
    has: Callable[[Row], bool]


TRAITS = (
    Trait(
        "damaged-text",
        "with U+FFFD, which stands for characters that were lost",
        lambda row: any("\ufffd" in text for text in row.texts()),
    ),
    Trait(
        "damaged-text",
        "with text that was encoded twice (such as Ã© for é)",
        lambda row: any(map(_is_doubly_encoded, row.texts())),
    ),
    Trait(
        "tokens-of-other-models",
        "with control tokens of other models' templates, which are plain text here",
        lambda row: any(map(_OF_OTHER_MODELS.search, row.texts())),
    ),
    Trait("unusual-turns", "with a system turn that is not the first", _late_system),
    Trait("unusual-turns", "with two user turns in a row", _two_user_turns),
)
"""Traits that are counted, each a bit by its place here."""


def traits_of(row: Row) -> int:
    """Return the traits that a row has, as bits by their places in `TRAITS`."""
    return sum(1 << place for place, trait in enumerate(TRAITS) if trait.has(row))


def told_of_split(split: str, rows: Rows, audits: RowAudits) -> Iterator[Diagnostic]:
    """Yield what is told of one split."""
    table = audits.usable
    yield from _of_text(split, rows, table)
    yield from _duplicates(split, rows, table)
    yield from _two_answers(split, rows, table)
    if split == "train":
        yield from _one_answer(split, rows, table)


def told_of_splits(
    settings: Data, rows: Mapping[str, Rows], audits: Mapping[str, RowAudits]
) -> dict[str, tuple[Diagnostic, ...]]:
    """Return, by split, the rows and pictures that it shares with the training split."""
    train = audits["train"].usable
    return {
        split: tuple(
            chain(
                _shared_rows(split, settings, rows, audits[split].usable, train),
                _shared_pictures(split, rows, audits[split].usable, train),
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
        for at, other in zip(shared[:LISTED].tolist(), places.tolist(), strict=False)
    ]
    more = [f"… and {len(shared) - LISTED:,} more"] if len(shared) > LISTED else []
    said = f"data.{split}: {len(shared):,} of {len(mine):,} rows are also trained on:"
    refused = split == "test" and len(shared) > settings.max_overlap_rows
    yield Diagnostic(
        "rows-in-two-splits",
        Lines.of(said, [*pairs, *more]),
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


def _in_common(mine: NDArray[Any], others: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the places of values that others have too, and the place of each among these."""
    if not len(mine) or not len(others):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(others, kind="stable")
    found = np.searchsorted(others, mine, sorter=order).clip(max=len(others) - 1)
    same = others[order[found]] == mine
    return np.flatnonzero(same), order[found][same]


def _of_text(split: str, rows: Rows, table: NDArray[np.void]) -> Iterator[Diagnostic]:
    said: dict[str, list[str]] = {}
    for place, trait in enumerate(TRAITS):
        at = np.flatnonzero(table["text_traits"] & (1 << place))
        if len(at):
            named = f"{len(at):,} {trait.words} ({_first(rows, table, at)})"
            said.setdefault(trait.rule, []).append(named)
    for rule, parts in said.items():
        yield Diagnostic(
            rule,
            f"data.{split}: of {len(table):,} rows, {'; '.join(parts)}",
            parameter=f"data.{split}",
        )


def _duplicates(split: str, rows: Rows, table: NDArray[np.void]) -> Iterator[Diagnostic]:
    _, first, inverse = np.unique(table["digest"], return_index=True, return_inverse=True)
    again = np.flatnonzero(first[inverse] != np.arange(len(table)))
    if len(again):
        pairs = ", ".join(
            f"{rows.name(int(table['index'][at]))} is"
            f" {rows.name(int(table['index'][first[inverse[at]]]))}"
            for at in again[:3].tolist()
        )
        yield Diagnostic(
            "duplicate-rows",
            f"data.{split}: {len(again):,} of {len(table):,} rows are there before, in text and"
            f" pictures ({pairs}{', …' if len(again) > 3 else ''})",
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
