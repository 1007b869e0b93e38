"""A run's session for `vtool validate-config --live`: its real objects at tiny size, on the CPU."""

import math
from dataclasses import replace
from pathlib import Path

from vtool.config.schema import Model, Run, Source
from vtool.config.schema.formats.entry import rows_bytes
from vtool.data.audit import Ledger
from vtool.data.loader import EncodedRows
from vtool.data.row_audits import RowAudit, RowAudits
from vtool.data.sources import Rows
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks
from vtool.families.family import load_family
from vtool.model_folder import MODEL_CONFIG, PROCESSOR_FILES, ModelFolder
from vtool.models.backends import choose_backend
from vtool.models.build import build_model, model_config
from vtool.models.processor import Processor, new_processor, with_sizes
from vtool.models.video import video_processor
from vtool.training.model_and_engine import prepare_model
from vtool.training.run_folder import RunFolder
from vtool.training.session import Session
from vtool.verification.begun import with_config_of_begun
from vtool.words import first_line

LARGEST_FILE = 256 * 2**20
"""Bytes of a rows file that is opened. Counting a GB of rows takes seconds: training does so."""
# Settings of a config.json that say how the model computes, not how large it is. An engine may
# refuse some of them.
COPIED_FIELDS = (
    "tie_word_embeddings",
    "hidden_act",
    "attention_dropout",
    "use_sliding_window",
)


def open_small_session(recipe_run: Run, small: Run, folder: Path, ranks: Ranks) -> Session:
    """Open the session of a small run that is about to train.

    No row is read, and nothing is written outside `folder`.

    Args:
        recipe_run: the recipe's run.
        small: what `shrink_run` made of it.

    Raises:
        Findings: where a part of the run cannot be built.
    """
    processor = _build_processor(recipe_run, small)
    config = model_config(small.model, processor)
    begun = with_config_of_begun(recipe_run).model
    if begun.path is not None and ModelFolder(Path(begun.path)).has(MODEL_CONFIG):
        keep_flags(config, begun)
    config.save_pretrained(folder)
    model = prepare_model(small, build_model(small.model, processor, folder, small.run.seed))
    data = small.data
    rows = {
        split: EncodedRows(
            Rows(entries if all(map(_can_open, entries)) else (), allow_urls=data.allow_urls),
            processor,
            data,
        )
        for split, entries in data.splits.items()
        if entries
    }
    # With epochs, enough rows for the warm-up: only their audit shows how many can be used.
    train = small.train
    warmup = small.optim.warmup_steps if small.optim.warmup_ratio is None else 0
    steps_an_epoch = (
        1 if train.steps else 8 + math.ceil(warmup / min(train.epochs or 1, warmup + 1))
    )
    count = data.global_batch_size * steps_an_epoch
    ledger = Ledger.of(RowAudits.of(RowAudit(index, tokens=1) for index in range(count)))
    return Session.open(
        small, rows, model, ranks, ledgers={"train": ledger}, folder=RunFolder(small.folder)
    )


def _build_processor(recipe_run: Run, small: Run) -> Processor:
    """Build the processor, with the model folder's own for images and videos if it has them."""
    data = small.data
    processor = new_processor(small.model, data.image, [], data.video, data)
    path = recipe_run.model.path
    if path is None or not ModelFolder(Path(path)).has(*PROCESSOR_FILES):
        return processor
    known = load_family(small.model.family)
    try:
        backend = choose_backend(data.image.backend, Path(path))
        images = known.image_processor_class(backend).from_pretrained(path, local_files_only=True)
        videos = video_processor(known, ModelFolder(Path(path)).video_processor, backend)
    except Findings:
        raise
    except Exception as error:  # its reader raises what its file's format raises
        raise _not_loaded(
            f"{path}: the image or the video processor cannot be read: {first_line(error)}"
        ) from error
    return with_sizes(
        replace(processor, image_processor=images, video_processor=videos), data.image, data.video
    )


def keep_flags(config: object, model: Model) -> None:
    """Copy into a small model's config what it can have of the folder's config.json.

    Raises:
        Findings: `model-does-not-load`.
    """
    from transformers import AutoConfig

    try:
        given = AutoConfig.from_pretrained(model.path, local_files_only=True)
    except Exception as error:
        raise _not_loaded(
            f"{model.path}: config.json cannot be read: {first_line(error)}"
        ) from error
    text, own = given.get_text_config(), config.get_text_config()  # type: ignore[attr-defined]
    for name in COPIED_FIELDS:
        if hasattr(text, name):
            setattr(own, name, getattr(text, name))
    config.tie_word_embeddings = own.tie_word_embeddings  # type: ignore[attr-defined]
    if "rope_type" in (positions := getattr(text, "rope_parameters", None) or {}):
        kind = {"rope_type": positions["rope_type"]}
        own.rope_parameters = {**positions, **own.rope_parameters, **kind}


def _not_loaded(message: str) -> Findings:
    return Findings(Diagnostic("model-does-not-load", message, parameter="model.path"))


def _can_open(source: Source) -> bool:
    """Return whether a source's rows are here, and not too many.

    A recipe of another trainer may name files that are on another machine.
    """
    sizes = [rows_bytes(file) for file in source.files().values()]
    return all(size is not None and size <= LARGEST_FILE for size in sizes)
