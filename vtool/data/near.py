"""Rows with nearly the same answers, found by MinHash over runs of words (`vtool verify --near`).

Answers alone are compared: questions of one kind often differ in a word. In numpy, since datasketch
brings SciPy.
"""

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import xxhash
from numpy.typing import NDArray

from vtool.data.permutation import mix
from vtool.data.row import Row, texts_of
from vtool.data.row_audits import RowAudits
from vtool.data.sources import Rows
from vtool.diagnostics import Diagnostic, Findings

FEWEST_WORDS = 20
"""Words of a row's answers below which it is not compared: short answers are alike by nature."""
ALIKE = 0.8
"""The share of runs of words that two rows have in common, of all that either has."""
_RUN = 5
"""Words of a run."""
_BANDS, _HASHES = 16, 4
# Two rows that are 0.8 alike agree in a band with a chance of 0.8^4, and in none of 16 with one of
# 0.0002; at 0.4 alike they are compared in 34 of 100 cases, and at 0.2 in 3.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
"""A word; where these are not set apart by spaces, a character."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_AT_ONCE = 4096
"""Runs of words of a row that are hashed at once."""


@dataclass(frozen=True, slots=True)
class Near:
    """A row, and one before it that has nearly its answers."""

    split: str
    index: int
    other_split: str
    other: int
    alike: float


@dataclass(frozen=True, slots=True)
class NearDuplicates:
    """Rows that were compared, and those found near another; rows that are equal count once."""

    near: tuple[Near, ...]
    rows: Mapping[str, int]
    """Rows that were compared."""
    short: Mapping[str, int]
    """Rows with too few words."""


def find_near(rows: Mapping[str, Rows], audits: Mapping[str, RowAudits]) -> NearDuplicates:
    """Compare the usable rows of all splits with those before them; training rows come first."""
    compared, short, seen = dict.fromkeys(audits, 0), dict.fromkeys(audits, 0), set[int]()
    most = sum(len(audit.usable) for audit in audits.values())
    places, keys = array("q"), np.zeros((most, _BANDS), np.uint64)
    begins: dict[str, int] = {}
    for split, audit in audits.items():
        begins[split] = len(places)
        for index, digest in audit.usable[["index", "digest"]].tolist():
            if digest in seen:  # that it is there twice is reported elsewhere
                continue
            seen.add(digest)
            runs = _runs_of(rows[split], index)
            if len(runs):
                compared[split] += 1
                keys[len(places)] = _band_keys(runs)
                places.append(index)
            else:
                short[split] += 1
    near = tuple(_verified(rows, _Places(places, begins), keys[: len(places)]))
    return NearDuplicates(near, compared, short)


@dataclass(frozen=True, slots=True)
class _Places:
    """The rows that are compared, by their place among them."""

    indices: Sequence[int]
    begins: Mapping[str, int]
    """The first place of each split."""

    def __getitem__(self, place: int) -> tuple[str, int]:
        split = [name for name, begin in self.begins.items() if begin <= place][-1]
        return split, self.indices[place]


def near_duplicate_findings(
    compared: NearDuplicates, rows: Mapping[str, Rows]
) -> dict[str, tuple[Diagnostic, ...]]:
    """Return by split the rows that are near another one of it, or one that is trained on."""
    return {split: tuple(_split_findings(split, compared, rows)) for split in compared.rows}


def _split_findings(
    split: str, compared: NearDuplicates, rows: Mapping[str, Rows]
) -> Iterator[Diagnostic]:
    mine = [one for one in compared.near if one.split == split]
    for others in dict.fromkeys(one.other_split for one in mine):
        found = [one for one in mine if one.other_split == others]
        pairs = ", ".join(
            f"{rows[split].name(one.index)} as {rows[others].name(one.other)},"
            f" {100 * one.alike:.0f} %"
            for one in found[:3]
        )
        which = "a row before" if others == split else f"a row of data.{others}"
        yield Diagnostic(
            "near-duplicate-rows",
            f"data.{split}: {len(found):,} of {compared.rows[split]:,} rows have nearly the answers"
            f" of {which} ({pairs}{', …' if len(found) > 3 else ''})",
            parameter=f"data.{split}",
            severity="note" if others == split else "warning",
        )


def _verified(
    rows: Mapping[str, Rows], places: _Places, keys: NDArray[np.uint64]
) -> Iterator[Near]:
    """Yield each row that is really near to one of those that have a band like it."""

    @lru_cache(maxsize=16_384)
    def runs(place: int) -> NDArray[np.uint64]:
        split, index = places[place]
        return _runs_of(rows[split], index)

    for place, others in sorted(_candidates(keys).items()):
        for other in sorted(others):  # training rows first
            one, two = runs(place), runs(other)
            common = len(np.intersect1d(one, two, assume_unique=True))
            alike = common / max(1, len(one) + len(two) - common)
            if alike >= ALIKE:
                yield Near(*places[place], *places[other], alike)
                break


def _candidates(keys: NDArray[np.uint64]) -> dict[int, set[int]]:
    """Return, by row, some before it that have a band in common: the first and the last."""
    found: dict[int, set[int]] = {}
    for band in keys.T if len(keys) else ():
        order = np.argsort(band, kind="stable")  # of equal keys, rows in their order
        same = np.flatnonzero(band[order[1:]] == band[order[:-1]])
        begins = np.maximum.accumulate(
            np.where(np.r_[True, band[order[1:]] != band[order[:-1]]], np.arange(len(order)), 0)
        )
        for at in same.tolist():
            others = found.setdefault(int(order[at + 1]), set())
            others |= {int(order[at]), int(order[begins[at]])}
    return found


def _runs_of(rows: Rows, index: int) -> NDArray[np.uint64]:
    """Return the digests of a row's runs of words, each once; none where it has few words."""
    try:
        row = rows.row(index)
    except Findings:  # it has changed since its audit
        return np.zeros(0, np.uint64)
    return runs_of_words(learnt_texts(row))


def learnt_texts(row: Row) -> str:
    """Return the texts of a row that are learnt."""
    return "\n".join(text for place in row.supervised() for text in texts_of(row.messages[place]))


def runs_of_words(text: str) -> NDArray[np.uint64]:
    """Return the digests of the runs of words of a text, each once; none where it has few words."""
    words = _WORD.findall(text.casefold())
    if len(words) < FEWEST_WORDS:
        return np.zeros(0, np.uint64)
    hashed = np.fromiter(map(_hashed, words), np.uint64, len(words))
    runs = np.zeros(len(words) - _RUN + 1, np.uint64)
    for offset in range(_RUN):
        runs = mix(runs * _FACTOR + hashed[offset : offset + len(runs)])
    return np.unique(runs)


@lru_cache(maxsize=65_536)
def _hashed(word: str) -> int:
    return xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass"))


_SALTS = mix(np.arange(1, _BANDS * _HASHES + 1, dtype=np.uint64) * _FACTOR)[:, None]


def _band_keys(runs: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a key for each band: two rows agree in it where all of its minima are the same."""
    least = np.full(len(_SALTS), np.iinfo(np.uint64).max, np.uint64)
    for start in range(0, len(runs), _AT_ONCE):
        least = np.minimum(least, mix(runs[start : start + _AT_ONCE] ^ _SALTS).min(axis=1))
    keys = np.zeros(_BANDS, np.uint64)
    for column in least.reshape(_BANDS, _HASHES).T:
        keys = mix(keys * _FACTOR + column)
    return keys
