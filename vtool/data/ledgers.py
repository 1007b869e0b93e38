"""The ledgers of all splits of a run, those that are held back from the training rows included."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vtool.config.schema import Data
from vtool.data.audit import Ledger, build_ledger
from vtool.data.loader import EncodedRows
from vtool.data.mixture import epoch_in_words, sources_that_give_nothing
from vtool.data.quality import cross_split_findings
from vtool.data.row_audits import RowAudits
from vtool.data.splits import divide, empty_sides, splits_in_words
from vtool.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class SplitAudit:
    """The audit of one split."""

    audits: RowAudits
    ledger: Ledger
    findings: tuple[Diagnostic, ...]
    """Findings that stand against training or evaluating on it."""
    shared: tuple[Diagnostic, ...]
    """Findings of rows and pictures that it shares with the training split."""


def with_held_back(settings: Data, rows: Mapping[str, EncodedRows]) -> dict[str, EncodedRows]:
    """Return the rows of every split; those that are held back are rows of `train`."""
    every = {**rows, **dict.fromkeys(settings.split.shares, rows["train"])}
    return {split: every[split] for split in settings.splits if split in every}


def build_ledgers(
    settings: Data, rows: Mapping[str, EncodedRows], audits: Mapping[str, RowAudits]
) -> dict[str, SplitAudit]:
    """Return the audit of each split of `rows`, whose training rows are divided here.

    Args:
        rows: as `with_held_back` returns them.
        audits: of all rows of each split that has rows of its own.
    """
    parts = {**audits, **divide(settings.split, audits["train"])}
    sources = {split: each.rows for split, each in rows.items()}
    shared = cross_split_findings(settings, sources, {split: parts[split] for split in rows})
    empty = empty_sides(settings, {split: parts[split] for split in _divided(settings)})
    held_back = splits_in_words(settings.split, parts)
    made = {}
    for split, encoded in rows.items():
        ledger, findings = build_ledger(encoded, parts[split], split)
        own = [one for one in empty if (one.parameter or "").removeprefix("data.split.") == split]
        own += [one for one in empty if one.parameter == "data.split" and split == "train"]
        if own:
            findings = (*(one for one in findings if one.rule != "no-rows"), *own)
        if split == "train" and not findings:
            findings = tuple(sources_that_give_nothing(settings.train, ledger.by_source))
        epoch = epoch_in_words(settings.train, ledger.by_source) if split == "train" else ""
        ledger = replace(ledger, held_back=held_back.get(split, ""), epoch=epoch)
        made[split] = SplitAudit(parts[split], ledger, findings, shared.get(split, ()))
    return made


def _divided(settings: Data) -> tuple[str, ...]:
    return ("train", *settings.split.shares) if settings.split.shares else ()
