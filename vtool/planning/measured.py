"""The sizes of a recipe's rows, where these are there: their tokens, images and tokenizer."""

from dataclasses import dataclass

from vtool.config.schema import Run
from vtool.data.audit_cache import audit_split, usual_cache
from vtool.data.loader import EncodedRows
from vtool.data.sources import open_splits
from vtool.data.turns import prepare_rows
from vtool.devices import own_cores
from vtool.diagnostics import Findings
from vtool.families.family import load_family
from vtool.models.processor import new_processor
from vtool.models.tokenizer import train_tokenizer
from vtool.training.setup import read_texts


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """The sizes of the training rows, as their audit has measured them."""

    rows: int
    """The number of rows that can be used."""
    tokens: int
    """Tokens of the longest row."""
    supervised: int
    """The most supervised tokens of a row."""
    images: int | None
    """The most images of a row; None: some rows have videos, which are not planned."""
    grid: tuple[int, int]
    """Patches along the two sides of an image of the row with the most."""


def measure_rows(run: Run) -> MeasuredRows:
    """Measure the training rows of a recipe, by their audit or by an earlier one's.

    Raises:
        Findings: of a file that cannot be read, of a model's folder without a tokenizer, or of
            rows of which none can be used.
    """
    source = open_splits(run.data)["train"]
    texts = [] if run.model.path else read_texts(source)
    processor = new_processor(run.model, run.data.image, texts, run.data.video, run.data)
    prepare_rows(source, processor, run.data)
    encoded = EncodedRows(source, processor, run.data)
    audits = audit_split(encoded, source.taken(), usual_cache(encoded), own_cores(run, 1))
    table = audits.usable
    if not len(table):
        raise Findings(audits.findings.values())
    most = table[table["images"].argmax()]
    grid = encoded.sample(int(most["index"])).visuals.inputs.get("image_grid_thw")
    largest = (0, 0) if grid is None else max(map(tuple, grid[:, 1:].tolist()))
    return MeasuredRows(
        len(table),
        int(table["tokens"].max()),
        int(table["supervised"].max()),
        None if table["videos"].any() else int(most["images"]),
        largest,
    )


def vocabulary_of(run: Run) -> int | None:
    """Return the entries of the tokenizer that a run trains on its rows; None: there are none."""
    names = load_family(run.model.family).facts.token_names
    try:
        return len(train_tokenizer(read_texts(open_splits(run.data)["train"]), names))
    except Findings:
        return None
