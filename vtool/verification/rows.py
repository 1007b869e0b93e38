"""The audit of rows without training: `vtool verify ROWS-FILE` and `vtool verify RECIPE`."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from vtool.config.schema import Run
from vtool.data.audit import Ledger, build_ledger, warnings
from vtool.data.audit_cache import audit_split, usual_cache
from vtool.data.chat import IGNORED
from vtool.data.encode import Sample
from vtool.data.loader import EncodedRows
from vtool.data.quality import told_of_splits
from vtool.data.row_audits import RowAudits
from vtool.data.sources import Rows, open_splits
from vtool.diagnostics import Diagnostic, Findings
from vtool.models.processor import Processor, new_processor
from vtool.training.setup import read_texts

FIRST = 5
"""The number of rows that are shown without being asked for."""


@dataclass(frozen=True, slots=True)
class Span:
    """Supervised tokens of a row: [start, end), and their labels as text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """The length of a row, and what is supervised of it: a span for each turn."""

    row: str
    tokens: int
    spans: tuple[Span, ...]
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
    shown: tuple[Shown, ...]
    """The first usable rows, and those asked for, usable or not."""


def audit_rows(run: Run, row_names: Sequence[str] = ()) -> list[Audit]:
    """Encode and check every row of every split that a run names.

    Args:
        row_names: rows to show beside the first ones: their names, as findings write them, or their
            line numbers.

    Raises:
        Findings: where a file or the model's folder cannot be read at all; `unknown-row`, where a
            row is asked for that is not there.
    """
    sources = open_splits(run.data)
    texts = [] if run.model.path else read_texts(sources["train"])
    processor = new_processor(run.model, run.data.image, texts, run.data.video)
    found = {split: _find_rows(source, row_names) for split, source in sources.items()}
    if missing := [name for name in row_names if not any(name in rows for rows in found.values())]:
        raise Findings(
            [Diagnostic("unknown-row", f"there is no row {name}") for name in missing], fatal=True
        )
    rows = {split: EncodedRows(source, processor, run.data) for split, source in sources.items()}
    audits = {split: _audit_all(each) for split, each in rows.items()}
    shared = told_of_splits(run.data, sources, audits)
    return [
        _audit_split(run, split, rows[split], audits[split], found[split], shared.get(split, ()))
        for split in rows
    ]


def _audit_all(rows: EncodedRows) -> RowAudits:
    began, cache = time.monotonic(), usual_cache(rows)
    audits = audit_split(rows, range(len(rows.rows)), cache)
    if cache:
        cache.write(audits, time.monotonic() - began)
    return audits


def _audit_split(
    run: Run,
    split: str,
    rows: EncodedRows,
    audits: RowAudits,
    by_name: dict[str, list[int]],
    shared: Sequence[Diagnostic],
) -> Audit:
    ledger, findings = build_ledger(rows, audits, split)
    indices = [*ledger.kept[:FIRST], *(index for found in by_name.values() for index in found)]
    return Audit(
        split,
        ledger,
        (*findings, *shared, *warnings(ledger, run, split)),
        render_example(rows.sample(ledger.kept[0]), rows.processor) if ledger.kept else None,
        tuple(_show(rows, index, audits.findings.get(index)) for index in dict.fromkeys(indices)),
    )


def _find_rows(rows: Rows, row_names: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of the rows of these names that a split has, by name."""
    found: dict[str, list[int]] = {}
    for index in range(len(rows) if row_names else 0):
        name = rows.name(index)
        for matching in {name, name.rpartition(":")[2]} & set(row_names):
            found.setdefault(matching, []).append(index)
    return found


def _show(rows: EncodedRows, index: int, finding: Diagnostic | None) -> Shown:
    """Find the supervised spans of a row."""
    name = rows.rows.name(index)
    if finding:
        return Shown(name, 0, (), f"{finding.message} ({finding.rule})")
    labels, tokenizer = rows.sample(index).labels.tolist(), rows.processor.tokenizer
    spans = []
    for supervised, run in groupby(range(len(labels)), key=lambda at: labels[at] != IGNORED):
        start, *rest = run
        end = start + len(rest) + 1
        if supervised:
            text = tokenizer.decode(labels[start:end], clean_up_tokenization_spaces=False)
            spans.append(Span(start, end, text))
    return Shown(name, len(labels), tuple(spans))


def render_example(sample: Sample, processor: Processor) -> str:
    """Return a sample's tokens as text, with what is supervised between ⟦ and ⟧.

    A run of image or video tokens is written once, with its length.
    """
    return "".join(_pieces(sample, processor))


def _pieces(sample: Sample, processor: Processor) -> Iterator[str]:
    ids, labels = sample.input_ids.tolist(), sample.labels.tolist()
    visual, tokenizer = (processor.ids.image, processor.ids.video), processor.tokenizer

    def kind(place: int) -> tuple[bool, int | None]:
        return labels[place] != IGNORED, ids[place] if ids[place] in visual else None

    before = False
    for (supervised, token), places in groupby(range(len(ids)), key=kind):
        run = [ids[place] for place in places]
        if supervised != before:
            yield "⟦" if supervised else "⟧"
        if token is None:
            yield tokenizer.decode(run, clean_up_tokenization_spaces=False)
        else:
            yield f"{tokenizer.convert_ids_to_tokens(token)}×{len(run)}"
        before = supervised
    if before:
        yield "⟧"
