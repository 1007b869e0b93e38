"""Audit rows without training: `vtool verify ROWS-FILE` or `vtool verify RECIPE`."""

from dataclasses import dataclass

from vtool.config.schema import Run
from vtool.data.audit import Ledger, look, settle
from vtool.data.chat import IGNORED
from vtool.data.encode import Sample
from vtool.data.loader import EncodedRows
from vtool.data.sources import Rows
from vtool.diagnostics import Diagnostic
from vtool.models.processor import Processor, new_processor
from vtool.training.setup import read_texts


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit of one split found."""

    split: str
    ledger: Ledger
    findings: tuple[Diagnostic, ...]
    example: str | None
    """The first usable row as the model reads it, with what is supervised between ⟦ and ⟧."""


def audit_rows(run: Run) -> list[Audit]:
    """Encode and check every row of every split that a run names.

    Raises:
        Findings: where a file or the model's folder cannot be read at all.
    """
    entries = {"train": run.data.train, "validation": run.data.validation, "test": run.data.test}
    sources = {split: Rows(entry) for split, entry in entries.items() if entry}
    processor = new_processor(run.model, run.data.image, read_texts(sources["train"]))
    audits = []
    for split, source in sources.items():
        rows = EncodedRows(source, processor, run.data)
        ledger, findings = settle(rows, look(rows, range(len(source)), run.data.workers), split)
        example = render_example(rows.sample(ledger.kept[0]), processor) if ledger.kept else None
        audits.append(Audit(split, ledger, findings, example))
    return audits


def render_example(sample: Sample, processor: Processor) -> str:
    """A sample's tokens as text. A run of image tokens is written once, with its length."""
    ids, labels = sample.input_ids.tolist(), sample.labels.tolist()
    text, supervised, place = "", False, 0
    while place < len(ids):
        if (labels[place] != IGNORED) != supervised:
            supervised = not supervised
            text += "⟦" if supervised else "⟧"
        end = place + 1
        while (
            end < len(ids)
            and (ids[end] == processor.ids.image) == (ids[place] == processor.ids.image)
            and (labels[end] != IGNORED) == supervised
        ):
            end += 1
        piece = processor.tokenizer.decode(ids[place:end], clean_up_tokenization_spaces=False)
        if ids[place] == processor.ids.image:
            piece = f"{processor.tokenizer.convert_ids_to_tokens(processor.ids.image)}×{end - place}"
        text += piece
        place = end
    return text + ("⟧" if supervised else "")
