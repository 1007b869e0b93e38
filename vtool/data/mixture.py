"""The sources of one split: how many rows of each are used, and how often they are trained on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtool.config.schema import Run, Source
from vtool.data.plan import SourceShare, weighted
from vtool.data.row_audits import RowAudits
from vtool.data.sources import Rows
from vtool.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """The rows of one source in one split: rows = kept + dropped."""

    name: str
    rows: int
    kept: int
    dropped: int
    limited: int
    """Rows that `limit` leaves out, which are none of `rows`."""
    tokens: int
    """Tokens of the kept rows, each once."""
    supervised_tokens: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, as files have them."""
        return asdict(self)

    def in_words(self) -> str:
        """Return the counts in a line."""
        limited = f" · {self.limited:,} beyond its limit" if self.limited else ""
        return (
            f"{self.name}: {self.rows:,} rows · {self.kept:,} kept · {self.dropped:,} dropped"
            f"{limited} · {self.tokens:,} tokens"
        )


def count_sources(
    rows: Rows, audits: RowAudits, *, held_back: bool = False
) -> tuple[SourceCounts, ...]:
    """Count the rows of each source in one split; of rows in memory there are none.

    Args:
        held_back: of a part of the training rows; what is beyond a limit is counted with the rest.
    """
    table = audits.table
    of = rows.sources_of(table["index"])
    usable = table["usable"]

    def sums(values: Any) -> list[int]:
        counted = np.bincount(of, weights=values, minlength=len(rows.names))
        return [int(count) for count in counted]

    everything, kept = sums(np.ones(len(table))), sums(usable)
    tokens, supervised = sums(table["tokens"] * usable), sums(table["supervised"] * usable)
    return tuple(
        SourceCounts(
            name,
            everything[at],
            kept[at],
            everything[at] - kept[at],
            0 if held_back else rows.limited[at],
            tokens[at],
            supervised[at],
        )
        for at, name in enumerate(rows.names)
    )


def is_mixed(entries: Sequence[Source]) -> bool:
    """Return whether some source gives more or less than each row once an epoch."""
    weights = len(entries) > 1 and any(entry.weight is not None for entry in entries)
    return weights or any(entry.repeat is not None for entry in entries)


def parts_of_epoch(entries: Sequence[Source], kept: Sequence[int]) -> tuple[SourceShare, ...]:
    """Return the part of each source in an epoch; nothing where each row comes once.

    Args:
        kept: the usable rows of each.
    """
    if not is_mixed(entries) or len(kept) != len(entries) or not all(kept):
        return ()
    weights = [entry.weight for entry in entries if entry.weight is not None]
    if len(weights) == len(entries) > 1:
        samples = weighted(kept, weights)
    else:
        samples = [
            round(count * (1 if entry.repeat is None else entry.repeat))
            for entry, count in zip(entries, kept, strict=True)
        ]
    return tuple(SourceShare(*each) for each in zip(kept, samples, strict=True))


def epoch_in_words(entries: Sequence[Source], counts: Sequence[SourceCounts]) -> str:
    """Return the samples of each source in an epoch, in words; empty where each row comes once."""
    parts = parts_of_epoch(entries, [count.kept for count in counts])
    each = [f"{part.samples:,} of {count.name}" for part, count in zip(parts, counts, strict=False)]
    total = sum(part.samples for part in parts)
    return f"an epoch has {total:,} samples: {', '.join(each)}" if parts else ""


def sources_that_give_nothing(
    entries: Sequence[Source], counts: Sequence[SourceCounts]
) -> list[Diagnostic]:
    """Return a finding for each source of a mixture of which no row would be trained on."""
    if not is_mixed(entries):
        return []
    parts = parts_of_epoch(entries, [count.kept for count in counts])
    found = []
    for number, count in enumerate(counts):
        name = f"data.train.{number}"
        if not count.kept:
            message = f"{name} ({count.name}) has no row to train on, and data.train is a mixture"
            found.append(Diagnostic("no-rows", message, "leave it out", name))
        elif parts and not parts[number].samples:
            key = "weight" if entries[number].weight is not None else "repeat"
            value = getattr(entries[number], key)
            message = f"{name}.{key} is {value:g}: of its {count.kept:,} rows an epoch has none"
            found.append(Diagnostic("no-rows", message, "raise it", f"{name}.{key}"))
    return found


def trained_on(
    run: Run, counts: Sequence[SourceCounts], visits: NDArray[np.int64], tokens: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the counts of rows, samples and tokens that each source gave to training, by its name.

    Args:
        visits: of each kept row.
        tokens: of each kept row, by what is counted.
    """
    found: dict[str, dict[str, Any]] = {}
    first = 0
    for entry, count in zip(run.data.train, counts, strict=True):
        own = slice(first, first + count.kept)
        times = visits[own]
        found[count.name] = {
            "rows": count.rows,
            "kept": count.kept,
            "dropped": count.dropped,
            "limited": count.limited,
            "weight": entry.weight,
            "repeat": entry.repeat,
            "samples": int(times.sum()),
            "distinct": int((times > 0).sum()),
            **{
                name: int((times * np.asarray(values[own])).sum())
                for name, values in tokens.items()
            },
        }
        first += count.kept
    return found
