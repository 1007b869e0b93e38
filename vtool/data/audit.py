"""The audit of a split: every row is encoded and checked, and kept or dropped for a reason."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash

from vtool.config.schema import Data, Run
from vtool.data.box_findings import BoxSummary, summarize_boxes
from vtool.data.loader import EncodedRows
from vtool.data.mixture import SourceCounts, count_sources
from vtool.data.quality import split_findings
from vtool.data.remarks import remark_findings
from vtool.data.row_audits import RowAudits
from vtool.data.vocabulary import token_id_findings
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.printable import Lines
from vtool.models.pictures import PICTURE_TRAITS
from vtool.words import plural

# More findings of one rule than this are counted, not listed.
_LISTED = 20
_NOT_OF_A_ROW = ("video-decoder-missing", "template-too-costly")
"""Rules about the machine and the model's folder: no row is dropped for these."""
ROW_RULES = (
    "labels-differ-from-answers",
    "image-token-mismatch",
    "end-token-unsupervised",
    "control-token-in-text",
    "unstable-template",
    "prompt-differs",
)
"""The rules that every row is checked by."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that is not trained on, and why."""

    row: str
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """The record of a split: the rows kept, those dropped and why, and their tokens."""

    sources: tuple[dict[str, Any], ...]
    rows: int
    kept: Sequence[int] = field(repr=False)
    dropped: tuple[Dropped, ...]
    lengths: Sequence[int] = field(repr=False)
    """Tokens of each kept row."""
    answers: Sequence[int] = field(repr=False)
    """Tokens of each kept row's last answer, without its end token.

    A greedy answer must be that long to be right.
    """
    targets: Sequence[int] = field(repr=False)
    """Supervised tokens of each kept row."""
    supervised_tokens: int
    images: int
    turns: int
    truncated: int
    cut: tuple[str, ...]
    """The rows that have lost a part of an answer by it."""
    ends: int
    """The assistant turns of kept rows whose end token is supervised."""
    images_digest: str
    """XXH3 of the kept rows' image and video files: a resumed run must see the same pictures."""
    videos: int
    traits: Mapping[str, int] = field(default_factory=dict)
    """Pictures and frames of which something is lost or changed, named as in `PICTURE_TRAITS`."""
    quality_findings: tuple[Diagnostic, ...] = ()
    """Warnings and notes on rows that can all be used (`vtool.data.quality`)."""
    reused: int = 0
    """Rows whose earlier audit was taken, since nothing about them has changed."""
    boxes: BoxSummary = field(default_factory=BoxSummary)
    """The boxes and points in the kept rows' text."""
    by_source: tuple[SourceCounts, ...] = ()
    """The counts of each source, in their order; none of rows that are not a recipe's."""
    epoch: str = ""
    """The samples that an epoch of a mixture has of each source, in words."""
    held_back: str = ""
    """The number of rows that `data.split` holds back for this split, in words."""
    findings: tuple[Diagnostic, ...] = ()
    """The findings of `vtool.audit` about the rows. Empty in a run, which raises or prints them."""

    @classmethod
    def of(cls, audits: RowAudits) -> "Ledger":
        """Return the ledger of the usable rows, without sources, dropped rows and rows' names."""
        kept = audits.usable
        return cls(
            sources=(),
            rows=len(audits),
            kept=_numbers(kept["index"]),
            dropped=(),
            lengths=_numbers(kept["tokens"]),
            answers=_numbers(kept["answer"]),
            targets=_numbers(kept["supervised"]),
            supervised_tokens=_sum(kept["supervised"]),
            images=_sum(kept["images"]),
            videos=_sum(kept["videos"]),
            turns=_sum(kept["turns"]),
            truncated=_sum(kept["truncated"]),
            cut=(),
            ends=_sum(kept["ends"]),
            images_digest=xxhash.xxh3_64(kept["images_digest"].tobytes()).hexdigest(),
            traits=audits.traits(),
            reused=audits.reused,
        )

    @property
    def dropped_by_rule(self) -> dict[str, int]:
        """Rows dropped for each rule, the most frequent rule first."""
        return dict(Counter(entry.rule for entry in self.dropped).most_common())

    def sources_in_words(self) -> list[str]:
        """Return a line for each source, where it says more than the ledger's, and of an epoch."""
        several = len(self.by_source) > 1 or any(each.limited for each in self.by_source)
        lines = [each.in_words() for each in self.by_source] if several else []
        return [*lines, self.epoch] if self.epoch else lines

    def in_words(self) -> str:
        """Return the ledger in a line."""
        rules = self.dropped_by_rule
        why = ", ".join(
            rule if len(rules) == 1 else f"{count} {rule}" for rule, count in rules.items()
        )
        parts = [
            plural(self.rows, "row"),
            f"{len(self.kept):,} kept",
            f"{len(self.dropped):,} dropped" + (f" ({why})" if why else ""),
        ]
        parts += [f"{self.reused:,} as audited before"] if self.reused else []
        parts += [f"{self.truncated:,} truncated"] if self.truncated else []
        parts += [plural(self.images, "image")]
        parts += [plural(self.videos, "video")] if self.videos else []
        parts += [self.boxes.in_words()] if self.boxes.rows else []
        parts += [f"{sum(self.lengths):,} tokens, of which {self.supervised_tokens:,} supervised"]
        return " · ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the ledger as data.json has it."""
        return {
            "files": list(self.sources),
            "rows": self.rows,
            "kept": len(self.kept),
            "tokens": sum(self.lengths),
            "longest": max(self.lengths, default=0),
            "supervised_tokens": self.supervised_tokens,
            "images": self.images,
            "videos": self.videos,
            "turns": self.turns,
            "truncated": self.truncated,
            "cut_answers": len(self.cut),
            "images_xxh3": self.images_digest,
            **({"boxes": self.boxes.as_dict()} if self.boxes.rows else {}),
            "sources": [count.as_dict() for count in self.by_source],
            "dropped": [
                {"row": entry.row, "rule": entry.rule, "message": entry.message}
                for entry in self.dropped
            ],
        }


def set_digests(rows: EncodedRows, audits: RowAudits) -> None:
    """Give the rows the digests of their audits, which every encoded row is compared with."""
    rows.audited = np.zeros(len(rows.rows), np.uint64)
    rows.audited[audits.table["index"]] = audits.table["digest"]


def build_ledger(
    rows: EncodedRows, audits: RowAudits, split: str
) -> tuple[Ledger, tuple[Diagnostic, ...]]:
    """Build the ledger, and return it with what stands against training on this split.

    Rows that cannot be used are dropped, up to `data.max_dropped_rows`; beyond that, each of them
    is a finding. A row that is too long is dropped only where `data.on_overlong` says so, and is a
    finding otherwise.
    """
    bad = audits.findings
    findings = _once([one for one in bad.values() if not _droppable(one, rows.settings)])
    droppable = {index: one for index, one in bad.items() if _droppable(one, rows.settings)}
    allowed = rows.settings.max_dropped_rows
    if len(droppable) > allowed:
        findings += droppable.values()
        message = (
            f"data.{split}: {len(droppable)} of {len(audits)} rows cannot be used;"
            f" data.max_dropped_rows is {allowed}"
        )
        findings.append(
            Diagnostic("too-many-dropped-rows", message, parameter="data.max_dropped_rows")
        )
    kept = audits.usable
    if not len(kept) and not findings:
        findings.append(
            Diagnostic("no-rows", f"data.{split} has no rows to use", parameter=f"data.{split}")
        )
    ledger = replace(
        Ledger.of(audits),
        sources=tuple(rows.rows.describe()),
        dropped=tuple(
            Dropped(rows.rows.name(index), one.rule, one.message)
            for index, one in droppable.items()
        ),
        cut=tuple(rows.rows.name(index) for index in kept["index"][kept["cut"] > 0].tolist()),
        by_source=count_sources(rows.rows, audits, held_back=split in rows.settings.split.shares),
    )
    if split == "train" and len(kept) and not ledger.ends:
        findings.append(_no_end(rows, ledger))
    findings += token_id_findings(split, rows, kept)
    boxes = summarize_boxes(split, rows, kept)
    video = rows.processor.video
    rate = video.fps if video.family.facts.shows_times else None
    template = str(rows.processor.tokenizer.chat_template)
    notes = rows.processor.notes if split == "train" else ()
    findings += [note for note in notes if note.severity == "error"]
    quality = (
        *(note for note in notes if note.severity != "error"),
        *split_findings(split, rows.settings, rows.rows, audits, rate),
        *boxes.findings,
        *remark_findings(split, rows.rows, kept, template),
    )
    ledger = replace(ledger, quality_findings=quality, boxes=boxes)
    return ledger, _cap(findings, len(rows.rows))


def _numbers(column: Any) -> Sequence[int]:
    """Return a column as whole numbers of 8 bytes each, which are equal as a list's are."""
    numbers = array("q")
    numbers.frombytes(column.astype(np.int64).tobytes())
    return numbers


def _sum(column: Any) -> int:
    return int(column.sum(dtype=np.int64))


def _no_end(rows: EncodedRows, ledger: Ledger) -> Diagnostic:
    """Return the finding of a split in which no answer is supervised to its end."""
    longest = rows.settings.max_length
    return Diagnostic(
        "end-token-unsupervised",
        f"data.train: data.max_length={longest} cuts every answer of all {len(ledger.kept)} rows"
        f" ({rows.rows.name(ledger.kept[0])}, …): a model that is trained on them never learns to"
        " stop",
        "raise data.max_length until answers fit, or drop the rows that are too long:"
        " data.on_overlong=drop, data.max_dropped_rows=N",
        parameter="data.max_length",
    )


def ledger_checks(ledgers: Iterable[Ledger]) -> dict[str, str]:
    """Return the verdicts on the splits of a run that began: what is an error did not let it."""
    cut = any(ledger.cut for ledger in ledgers)
    return dict.fromkeys(ROW_RULES, "passed") | ({"answer-cut-off": "failed"} if cut else {})


def audit_warnings(ledger: Ledger, run: Run, split: str) -> Iterator[Diagnostic]:
    """Yield warnings and notes: what may be intended, and is reported before it costs anything."""
    allowed = len(ledger.dropped) <= run.data.max_dropped_rows
    for rule, count in ledger.dropped_by_rule.items() if allowed else ():
        messages = [entry.message for entry in ledger.dropped if entry.rule == rule]
        more = [f"… and {count - _LISTED} more"] if count > _LISTED else []
        heading = (
            f"data.{split}: {count} of {ledger.rows} rows dropped, as data.max_dropped_rows allows:"
        )
        yield Diagnostic(rule, Lines.of(heading, [*messages[:_LISTED], *more]), severity="note")
    if ledger.traits:
        counted = "; ".join(
            f"{ledger.traits[name]} {words}"
            for name, words in PICTURE_TRAITS.items()
            if name in ledger.traits
        )
        yield Diagnostic("picture-converted", f"data.{split}: of its pictures, {counted}")
    yield from ledger.quality_findings
    if ledger.cut and (ledger.ends or split != "train"):  # else it is an error already
        listed = ", ".join(ledger.cut[:3]) + (", …" if len(ledger.cut) > 3 else "")
        message = (
            f"data.{split}: data.max_length={run.data.max_length} cuts the answers of"
            f" {len(ledger.cut)} of {len(ledger.kept)} rows ({listed}): where they end is not"
            " learnt"
        )
        yield Diagnostic("answer-cut-off", message, parameter="data.max_length", severity="warning")
    if split != "train" and (
        found := _unmatched(ledger, run.evaluation.generate.max_new_tokens, split)
    ):
        yield found


def _unmatched(ledger: Ledger, max_new_tokens: int, split: str) -> Diagnostic | None:
    """Return a warning if reference answers are longer than a greedy answer may be."""
    cut = [answer for answer in ledger.answers if answer > max_new_tokens]
    if not cut:
        return None
    message = (
        f"data.{split}: {len(cut)} of {len(ledger.answers)} answers are longer than the"
        f" {max_new_tokens} tokens that the model may write, and cannot be matched; the longest has"
        f" {max(cut)}"
    )
    help = f"set evaluation.generate.max_new_tokens={max(cut)}"
    return Diagnostic(
        "reference-too-long", message, help=help, parameter="evaluation.generate.max_new_tokens"
    )


def _droppable(finding: Diagnostic, settings: Data) -> bool:
    if finding.rule in _NOT_OF_A_ROW:
        return False
    return settings.on_overlong == "drop" if finding.rule == "overlong-row" else True


def _once(findings: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Keep the first finding of a missing decoder, which every row of a video has."""
    first = next((finding for finding in findings if finding.rule == "video-decoder-missing"), None)
    return [
        finding
        for finding in findings
        if finding.rule != "video-decoder-missing" or finding is first
    ]


def _cap(findings: Sequence[Diagnostic], rows: int) -> tuple[Diagnostic, ...]:
    """List the first findings of each rule and count the rest.

    A thousand lines would hide the one that matters. A finding that every row has in the same words
    comes from what all have in common, such as the chat template, and is listed once.
    """
    counts = Counter(finding.rule for finding in findings)
    words = {
        rule: {finding.message.partition(": ")[2] for finding in findings if finding.rule == rule}
        for rule in counts
    }
    listed = {
        rule: 1 if _LISTED < count == rows and len(words[rule]) == 1 else _LISTED
        for rule, count in counts.items()
    }
    seen: Counter[str] = Counter()
    shown = []
    for finding in findings:
        seen[finding.rule] += 1
        if seen[finding.rule] <= listed[finding.rule]:
            shown.append(finding)
    more = [
        Diagnostic(rule, f"… and {count - listed[rule]} more rows")
        for rule, count in counts.items()
        if count > listed[rule]
    ]
    return (*shown, *more)
