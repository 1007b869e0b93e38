"""The audit of rows without training: `vtool verify ROWS-FILE` and `vtool verify RECIPE`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from vtool.config.schema import Run
from vtool.data.audit import Ledger, audit_warnings
from vtool.data.audit_cache import audit_split, usual_cache
from vtool.data.chat import IGNORED
from vtool.data.ledgers import SplitAudit, build_ledgers, with_held_back
from vtool.data.loader import EncodedRows
from vtool.data.near import FEWEST_WORDS, NearDuplicates, find_near, near_duplicate_findings
from vtool.data.row import short_names
from vtool.data.row_audits import RowAudits
from vtool.data.sources import Rows, open_splits
from vtool.data.turns import OF_ANSWER, prepare_rows
from vtool.devices import own_cores
from vtool.diagnostics import Diagnostic
from vtool.models.processor import new_processor
from vtool.training.setup import read_texts
from vtool.verification.compare_backends import DIFFERS, compare_backends
from vtool.verification.learnable import FROZEN_ROW, ZERO_ROW, BlankTokens, blank_tokens
from vtool.verification.pieces import render_example
from vtool.verification.split_summary import summarize_split

FIRST_ROWS = 5
"""The number of rows that are shown without being asked for."""


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """Supervised tokens of a row: [start, end), and their labels as text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class RowSummary:
    """The length of a row, and what is supervised of it: a span for each turn."""

    row: str
    tokens: int
    spans: tuple[TurnSpan, ...]
    problem: str | None = None
    """The reason why the row cannot be used; it then has no tokens and no spans."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit of one split."""

    split: str
    ledger: Ledger
    findings: tuple[Diagnostic, ...]
    example: str | None
    """The first usable row as the model reads it, with what is supervised between ⟦ and ⟧."""
    shown: tuple[RowSummary, ...]
    """The first usable rows, and those asked for, usable or not."""
    look: Mapping[str, Any] | None = None
    """Counts and rows for a page, as plain values; None where no page is asked for."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Rules that were not looked at, and why."""
    measured: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Counts of what was looked at, by the rule that it was for."""


def audit_rows(
    run: Run,
    row_names: Sequence[str] = (),
    *,
    look: bool = False,
    near: bool = False,
    family_named: bool = False,
) -> list[Audit]:
    """Encode and check every row of every split that a run names.

    Args:
        row_names: rows to show in addition to the first ones: their names, as findings write them,
            or their line numbers.
        look: collect what a page shows.
        near: compare the rows' answers with each other.
        family_named: the user has named the family of a model whose weights are random.

    Raises:
        Findings: where a file or the model's folder cannot be read at all. A row that is asked for
            and is not there is a finding of the first audit: `unknown-row`.
    """
    sources = open_splits(run.data)
    texts = [] if run.model.path else read_texts(sources["train"])
    processor = new_processor(run.model, run.data.image, texts, run.data.video, run.data)
    processor = replace(processor, named=family_named or run.model.path is not None)
    for source in sources.values():
        prepare_rows(source, processor, run.data)
    found = {split: _find_rows(source, row_names) for split, source in sources.items()}
    unknown = _unknown_rows(sources, row_names, found)
    rows = {split: EncodedRows(source, processor, run.data) for split, source in sources.items()}
    audits = {split: _audit_all(run, each) for split, each in rows.items()}
    rows = with_held_back(run.data, rows)
    built = build_ledgers(run.data, rows, audits)
    every = {split: each.rows for split, each in rows.items()}
    parts = {split: audited.audits for split, audited in built.items()}
    compared = find_near(every, parts) if near else None
    alike = near_duplicate_findings(compared, every) if compared else {}
    made = [
        _audit_split(
            run,
            split,
            rows[split],
            replace(audited, shared=(*audited.shared, *alike.get(split, ()))),
            found.get(split, found["train"]),
            look,
        )
        for split, audited in built.items()
    ]
    made[0] = replace(made[0], findings=(*made[0].findings, *unknown))
    blank = blank_tokens(run, (processor.ids.image, processor.ids.video))
    made = [_with_blank(audit, blank, rows[audit.split]) for audit in made]
    made = [_with_backends(audit, rows[audit.split]) for audit in made]
    return [_with_near(audit, compared) for audit in made]


def _unknown_rows(
    sources: Mapping[str, Rows],
    row_names: Sequence[str],
    found: Mapping[str, Mapping[str, Sequence[int]]],
) -> list[Diagnostic]:
    """Return a finding for each name that no row has, with the names that there are."""
    there = [
        f"{rows.name(0)} to {rows.name(len(rows) - 1)}" if len(rows) > 1 else rows.name(0)
        for rows in sources.values()
        if len(rows)
    ]
    help = f"rows are named {', '.join(there)}" if there else None
    return [
        Diagnostic("unknown-row", f"there is no row {name}", help)
        for name in row_names
        if not any(name in rows for rows in found.values())
    ]


def _with_blank(audit: Audit, blank: BlankTokens, rows: EncodedRows) -> Audit:
    """Return an audit with the tokens of its rows whose row of the embedding is blank."""
    found = tuple(blank.findings(audit.split, rows, audit.ledger.kept))
    why_not = blank.why_not or (None if audit.ledger.kept else "there is no usable row")
    reasons = {} if why_not is None else dict.fromkeys((ZERO_ROW, FROZEN_ROW), why_not)
    return replace(audit, findings=(*audit.findings, *found), reasons={**audit.reasons, **reasons})


def _with_backends(audit: Audit, rows: EncodedRows) -> Audit:
    """Return an audit with the pixels that a server would make of its rows."""
    found = compare_backends(audit.split, rows, audit.ledger)
    return replace(
        audit,
        findings=(*audit.findings, *found.findings),
        reasons=audit.reasons
        if found.why_not is None
        else {**audit.reasons, DIFFERS: found.why_not},
        measured={**audit.measured, **({DIFFERS: found.measured} if found.measured else {})},
    )


def _with_near(audit: Audit, compared: NearDuplicates | None) -> Audit:
    """Return an audit with how many rows were compared, or why none were."""
    rule = "near-duplicate-rows"
    if compared is None:
        return replace(audit, reasons={**audit.reasons, rule: "--near is not given"})
    rows, short = compared.rows[audit.split], compared.short[audit.split]
    few = {} if rows else {rule: f"no row has answers of {FEWEST_WORDS} words"}
    measured = {**audit.measured, rule: {"rows compared": rows, "rows too short": short}}
    return replace(audit, reasons={**audit.reasons, **few}, measured=measured)


def _audit_all(run: Run, rows: EncodedRows) -> RowAudits:
    began, cache = time.monotonic(), usual_cache(rows)
    audits = audit_split(rows, rows.rows.taken(), cache, own_cores(run, 1))
    if cache:
        cache.write(audits, time.monotonic() - began)
    return audits


def _audit_split(
    run: Run,
    split: str,
    rows: EncodedRows,
    audited: SplitAudit,
    by_name: dict[str, list[int]],
    look: bool,
) -> Audit:
    ledger, audits = audited.ledger, audited.audits
    own = set(audits.table["index"].tolist()) if by_name else set()
    asked = [index for found in by_name.values() for index in found if index in own]
    indices = [*ledger.kept[:FIRST_ROWS], *asked]
    return Audit(
        split,
        ledger,
        (*audited.findings, *audited.shared, *audit_warnings(ledger, run, split)),
        render_example(rows.sample(ledger.kept[0]), rows.processor) if ledger.kept else None,
        tuple(_show(rows, index, audits.findings.get(index)) for index in dict.fromkeys(indices)),
        summarize_split(run, split, rows, audits, ledger.boxes) if look else None,
    )


def _find_rows(rows: Rows, row_names: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of the rows of these names that a split has, by name."""
    found: dict[str, list[int]] = {}
    for index in range(len(rows) if row_names else 0):
        name = rows.name(index)
        whole = name.partition(OF_ANSWER)[0]  # all samples of a row go by its name
        for matching in (short_names(name) | short_names(whole)) & set(row_names):
            found.setdefault(matching, []).append(index)
    return found


def _show(rows: EncodedRows, index: int, finding: Diagnostic | None) -> RowSummary:
    """Find the supervised spans of a row."""
    name = rows.rows.name(index)
    if finding:
        return RowSummary(name, 0, (), f"{finding.message} ({finding.rule})")
    labels, tokenizer = rows.sample(index).labels.tolist(), rows.processor.tokenizer
    spans = []
    for supervised, run in groupby(range(len(labels)), key=lambda at: labels[at] != IGNORED):
        start, *rest = run
        end = start + len(rest) + 1
        if supervised:
            text = tokenizer.decode(labels[start:end], clean_up_tokenization_spaces=False)
            spans.append(TurnSpan(start, end, text))
    return RowSummary(name, len(labels), tuple(spans))
