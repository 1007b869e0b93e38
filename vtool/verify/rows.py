"""Audit rows without training: `vtool verify ROWS-FILE` or `vtool verify RECIPE`."""

from collections.abc import Sequence
from dataclasses import dataclass

from vtool.config.schema import Run
from vtool.data.audit import Ledger, RowAudit, build_ledger, inspect_rows, warnings
from vtool.data.chat import IGNORED
from vtool.data.encode import Sample
from vtool.data.loader import EncodedRows
from vtool.data.sources import Rows
from vtool.diagnostics import Diagnostic, Findings
from vtool.models.processor import Processor, new_processor
from vtool.training.setup import read_texts

# Rows that are shown without being asked for.
FIRST = 5


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens in a row that are supervised."""

    start: int
    """The first one, from 0."""
    end: int
    """The one after the last."""
    text: str
    """Their labels, decoded."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A row's length and what is supervised of it, a span for each turn."""

    row: str
    tokens: int
    spans: tuple[Span, ...]
    problem: str | None = None
    """Why the row cannot be used; it then has no tokens and no spans."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit of one split found."""

    split: str
    ledger: Ledger
    findings: tuple[Diagnostic, ...]
    example: str | None
    """The first usable row as the model reads it, with what is supervised between ⟦ and ⟧."""
    shown: tuple[Shown, ...]
    """The first usable rows, and those asked for, usable or not."""


def audit_rows(run: Run, asked: Sequence[str] = ()) -> list[Audit]:
    """Encode and check every row of every split that a run names.

    Args:
        asked: rows to show beside the first ones: their names, as findings write them, or their
            line numbers.

    Raises:
        Findings: where a file or the model's folder cannot be read at all; `unknown-row`, where a
            row is asked for that is not there.
    """
    entries = {"train": run.data.train, "validation": run.data.validation, "test": run.data.test}
    sources = {split: Rows(entry) for split, entry in entries.items() if entry}
    processor = new_processor(
        run.model, run.data.image, read_texts(sources["train"]), run.data.video
    )
    wanted = {split: _find(source, asked) for split, source in sources.items()}
    if missing := [name for name in asked if not any(name in found for found in wanted.values())]:
        raise Findings(
            [Diagnostic("unknown-row", f"there is no row {name}") for name in missing], fatal=True
        )
    audits = []
    for split, source in sources.items():
        rows = EncodedRows(source, processor, run.data)
        looks = inspect_rows(rows, range(len(source)), run.data.workers)
        ledger, findings = build_ledger(rows, looks, split)
        findings += tuple(warnings(ledger, run, split))
        example = render_example(rows.sample(ledger.kept[0]), processor) if ledger.kept else None
        indices = dict.fromkeys(
            [*ledger.kept[:FIRST], *(index for found in wanted[split].values() for index in found)]
        )
        audits.append(
            Audit(
                split,
                ledger,
                findings,
                example,
                tuple(_show(rows, looks[index]) for index in indices),
            )
        )
    return audits


def _find(rows: Rows, asked: Sequence[str]) -> dict[str, list[int]]:
    """The rows asked for that a split has, by what was asked."""
    found: dict[str, list[int]] = {}
    for index in range(len(rows) if asked else 0):
        name = rows.name(index)
        for wanted in {name, name.rpartition(":")[2]} & set(asked):
            found.setdefault(wanted, []).append(index)
    return found


def _show(rows: EncodedRows, one: RowAudit) -> Shown:
    """Where a row is supervised."""
    name = rows.rows.name(one.index)
    if one.finding:
        return Shown(name, 0, (), f"{one.finding.message} ({one.finding.rule})")
    sample, processor = rows.sample(one.index), rows.processor
    labels = sample.labels.tolist()
    edges = [
        place
        for place in range(len(labels) + 1)
        if _supervised(labels, place) != _supervised(labels, place - 1)
    ]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    spans = (
        (
            start,
            end,
            processor.tokenizer.decode(labels[start:end], clean_up_tokenization_spaces=False),
        )
        for start, end in pairs
    )
    return Shown(name, len(labels), tuple(Span(*span) for span in spans))


def _supervised(labels: Sequence[int], place: int) -> bool:
    return 0 <= place < len(labels) and labels[place] != IGNORED


def render_example(sample: Sample, processor: Processor) -> str:
    """A sample's tokens as text.

    A run of image or video tokens is written once, with its length.
    """
    ids, labels = sample.input_ids.tolist(), sample.labels.tolist()
    visual = (processor.ids.image, processor.ids.video)
    kinds = [token if token in visual else None for token in ids]
    text, supervised, place = "", False, 0
    while place < len(ids):
        if (labels[place] != IGNORED) != supervised:
            supervised = not supervised
            text += "⟦" if supervised else "⟧"
        end = place + 1
        while (
            end < len(ids) and kinds[end] == kinds[place] and (labels[end] != IGNORED) == supervised
        ):
            end += 1
        piece = processor.tokenizer.decode(ids[place:end], clean_up_tokenization_spaces=False)
        if kinds[place] is not None:
            piece = f"{processor.tokenizer.convert_ids_to_tokens(ids[place])}×{end - place}"
        text += piece
        place = end
    return text + ("⟧" if supervised else "")
