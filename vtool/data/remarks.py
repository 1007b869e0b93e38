"""Remarks about rows that can be used: kept as a number with each audit, and told for a split."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice

import numpy as np
import xxhash
from numpy.typing import NDArray

from vtool.data.keys import KEYS_READ
from vtool.data.row import Remark, Row
from vtool.data.sources import Rows
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.diagnostic import Severity
from vtool.diagnostics.near_miss import did_you_mean

_MOST_READ = 200
"""Rows that are read again to tell what their remarks are: one for each number."""
_LISTED = 8
_RULES: Mapping[str, tuple[str, Severity]] = {
    "unread-key": ("keys that nothing reads", "note"),
    "missing-as-text": ("texts that stand for a missing value", "warning"),
}


def remarks_of(row: Row, template: str) -> list[Remark]:
    """Return the remarks about a row, without keys of messages that its template names."""
    return [one for one in row.remarks if not (one.key and _names(template, one.key))]


def digest_of_remarks(row: Row, template: str) -> int:
    """Return a number that rows of the same remarks have in common; 0 for none."""
    if not row.remarks or not (found := remarks_of(row, template)):
        return 0
    text = "\n".join(sorted(f"{one.rule} {one.words}" for one in found))
    return xxhash.xxh32_intdigest(text.encode("utf-8", "surrogatepass")) or 1


@lru_cache(maxsize=1024)
def _names(template: str, key: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(key)}(?!\w)", template) is not None


@dataclass(slots=True)
class _Told:
    count: int = 0
    rows: list[int] = field(default_factory=list)
    """The numbers of the first rows."""
    key: str = ""


def remark_findings(
    split: str, rows: Rows, table: NDArray[np.void], template: str
) -> Iterator[Diagnostic]:
    """Yield a finding for each rule by which rows of a split have remarks."""
    having = np.flatnonzero(table["remarks"])
    numbers, first, inverse = np.unique(
        table["remarks"][having], return_index=True, return_inverse=True
    )
    told: dict[str, dict[str, _Told]] = {}
    for place in islice(np.argsort(first, kind="stable").tolist(), _MOST_READ):
        alike = table["index"][having[inverse == place]]
        try:
            found = remarks_of(rows.row(int(alike[0])), template)
        except Findings:  # its file has changed since: that is a finding
            continue
        for remark in found:
            one = told.setdefault(remark.rule, {}).setdefault(remark.words, _Told())
            one.count += len(alike)
            one.rows = sorted([*one.rows, *alike[:3].tolist()])[:3]
    more = len(numbers) > _MOST_READ
    for rule, by_words in told.items():
        yield _finding(split, rule, by_words, rows, len(table), more=more)


def _finding(
    split: str, rule: str, by_words: dict[str, _Told], rows: Rows, total: int, *, more: bool
) -> Diagnostic:
    what, severity = _RULES[rule]
    order = sorted(by_words.items(), key=lambda pair: -pair[1].count)
    parts = [
        f"{words} in {each.count:,} ({', '.join(map(rows.name, each.rows))}"
        f"{', …' if each.count > len(each.rows) else ''})"
        for words, each in order[:_LISTED]
    ]
    if len(order) > _LISTED or more:
        parts.append(f"and {len(order) - _LISTED:,}{' or more' * more} others")
    return Diagnostic(
        rule,
        f"data.{split}: of {total:,} rows, {what}: {'; '.join(parts)}",
        _help(rule, {words: _read(rows, each.rows[0], words) for words, each in order[:_LISTED]}),
        parameter=f"data.{split}",
        severity=severity,
    )


def _read(rows: Rows, index: int, words: str) -> Sequence[str]:
    """Return the keys that are read where a remark's key is."""
    if " of a message" in words:
        return KEYS_READ["message"]
    return (*getattr(rows.find(index)[0], "reads", ()), *KEYS_READ["row"])


def _help(rule: str, read: Mapping[str, Sequence[str]]) -> str | None:
    """Return the help of a rule.

    Args:
        read: the keys that are read in the place of each remark, by its words.
    """
    if rule != "unread-key":
        return None
    keys = [each.split('"')[1] for each in read]
    guesses = []
    for key, (each, known) in zip(keys, read.items(), strict=True):
        alike = [other for other in known if other in key] or get_close_matches(key, known, 1, 0.75)
        if (
            "of a part" not in each
            and key.partition(".")[0] not in known
            and (meant := did_you_mean(alike[:1]))
        ):
            guesses.append(f"{key}: {meant}")
    instead = f"where nothing of it is to be learnt: ignore: [{', '.join(dict.fromkeys(keys))}]"
    return "; ".join([*guesses, instead])
