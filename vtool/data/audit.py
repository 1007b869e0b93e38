"""The audit of a split: every row is encoded and looked at before it can cost anything, and each one is kept or dropped for a reason."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset

from vtool.config.schema import Data
from vtool.data.chat import IGNORED
from vtool.data.encode import Sample
from vtool.data.loader import EncodedRows
from vtool.diagnostics import Diagnostic, Findings
from vtool.models.processor import Processor

# More findings of one rule than this are counted, not listed.
LISTED = 20


@dataclass(frozen=True, slots=True)
class Audited:
    """What one row came to."""

    index: int
    tokens: int = 0
    supervised: int = 0
    images: int = 0
    turns: int = 0
    truncated: bool = False
    finding: Diagnostic | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that is not trained on, and why."""

    row: str
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every row of a split: kept, or dropped for a reason."""

    sources: tuple[dict[str, Any], ...]
    rows: int
    kept: tuple[int, ...]
    dropped: tuple[Dropped, ...]
    lengths: tuple[int, ...]
    """Tokens of each kept row."""
    supervised_tokens: int
    images: int
    turns: int
    truncated: int

    def as_dict(self) -> dict[str, Any]:
        """For data.json."""
        return {
            "files": list(self.sources),
            "rows": self.rows,
            "kept": len(self.kept),
            "tokens": sum(self.lengths),
            "longest": max(self.lengths, default=0),
            "supervised_tokens": self.supervised_tokens,
            "images": self.images,
            "turns": self.turns,
            "truncated": self.truncated,
            "dropped": [{"row": entry.row, "rule": entry.rule, "message": entry.message} for entry in self.dropped],
        }


@dataclass(slots=True)
class _Look(Dataset[Audited]):
    rows: EncodedRows

    def __getitem__(self, index: int) -> Audited:
        try:
            sample = self.rows.sample(index)
        except Findings as findings:
            return Audited(index, finding=findings.diagnostics[0])
        finding = check_labels(sample, self.rows.processor, self.rows.rows.name(index))
        return Audited(index, len(sample.input_ids), sample.supervised, sample.images, len(sample.turns), sample.truncated, finding)


def look(rows: EncodedRows, indices: Sequence[int], workers: int) -> list[Audited]:
    """Encode and check rows, in as many processes as `data.workers` says."""
    return list(DataLoader(_Look(rows), batch_size=None, sampler=indices, num_workers=workers))


def check_labels(sample: Sample, processor: Processor, name: str) -> Diagnostic | None:
    """Decode the labels, and hold them against the assistant's turns: an independent way back."""
    supervised = sample.labels[sample.labels != IGNORED].tolist()
    decoded = processor.tokenizer.decode(supervised, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    wanted = "".join(sample.turns)
    # Tokenizers may normalise (Qwen's to NFC); that is not a difference in what was said.
    decoded, wanted = (unicodedata.normalize("NFC", text) for text in (decoded, wanted))
    if wanted == decoded or (sample.truncated and wanted.startswith(decoded.rstrip("\ufffd"))):
        return None
    return Diagnostic("labels-differ-from-answers", f"{name}: the labels are not the answers", expected=repr(wanted), seen=repr(decoded))


def settle(rows: EncodedRows, looks: Iterable[Audited], split: str) -> tuple[Ledger, tuple[Diagnostic, ...]]:
    """Keep or drop each row, and say what stands against training on this split.

    Rows that cannot be used are dropped, up to `data.max_dropped_rows`; beyond that, each of them is a finding. A row that is too
    long is dropped only where `data.on_overlong` says so, and is a finding otherwise.
    """
    audited = sorted(looks, key=lambda one: one.index)
    bad = [one for one in audited if one.finding]
    findings = [one.finding for one in bad if one.finding and not _droppable(one.finding, rows.settings)]
    droppable = [one for one in bad if one.finding and _droppable(one.finding, rows.settings)]
    allowed = rows.settings.max_dropped_rows
    if len(droppable) > allowed:
        findings += [one.finding for one in droppable if one.finding]
        if allowed or rows.settings.on_overlong == "drop":
            message = f"data.{split}: {len(droppable)} of {len(audited)} rows would be dropped; data.max_dropped_rows is {allowed}"
            findings.append(Diagnostic("too-many-dropped-rows", message, parameter="data.max_dropped_rows"))
    kept = [one for one in audited if not one.finding]
    if not kept and not findings:
        findings.append(Diagnostic("no-rows", f"data.{split} has no rows to use", parameter=f"data.{split}"))
    ledger = Ledger(
        sources=tuple(rows.rows.ledger()),
        rows=len(audited),
        kept=tuple(one.index for one in kept),
        dropped=tuple(Dropped(rows.rows.name(one.index), one.finding.rule, one.finding.message) for one in droppable if one.finding),
        lengths=tuple(one.tokens for one in kept),
        supervised_tokens=sum(one.supervised for one in kept),
        images=sum(one.images for one in kept),
        turns=sum(one.turns for one in kept),
        truncated=sum(one.truncated for one in kept),
    )
    return ledger, _cap(findings)


def _droppable(finding: Diagnostic, settings: Data) -> bool:
    return settings.on_overlong == "drop" if finding.rule == "overlong-row" else True


def _cap(findings: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """List the first of each rule and count the rest: a thousand lines hide the one that matters."""
    seen: Counter[str] = Counter()
    shown = []
    for finding in findings:
        seen[finding.rule] += 1
        if seen[finding.rule] <= LISTED:
            shown.append(finding)
    more = [Diagnostic(rule, f"… and {count - LISTED} more rows") for rule, count in seen.items() if count > LISTED]
    return (*shown, *more)
