"""One process of `vtool validate-config --live`: builds a run's real objects, at tiny size and on
the CPU, and reads its settings back.

`vtool.verify.live_check` starts it.
"""

import traceback
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from vtool.config.expected import expected_settings
from vtool.config.readback import observed_settings, unobserved
from vtool.config.schema import MessagesSource, Model, Run, Source
from vtool.data.audit import Ledger, RowAudit
from vtool.data.loader import EncodedRows
from vtool.data.sources import Rows
from vtool.devices import place
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks
from vtool.families.family import load_family
from vtool.models.build import build_model, model_config
from vtool.models.processor import Processor, first_line, new_processor, with_sizes
from vtool.models.video import video_processor, video_settings_in
from vtool.training.model_and_engine import prepare_model
from vtool.training.observe_run import check_arrival, observe_run
from vtool.training.run_folder import RunFolder
from vtool.training.session import Session
from vtool.verify.live_task import Task, WorkerResult
from vtool.verify.processes import PATIENCE, answer, asked

# A rows file is gone through to count its rows, a GB in seconds. Of a larger one it is not worth
# the wait: training does so.
LARGEST_FILE = 256 * 2**20
# What a config.json says of how, not of how much, is computed; an engine may refuse some of it.
KEPT = ("tie_word_embeddings", "hidden_act", "attention_dropout", "use_sliding_window")


def main(folder_name: str, rank: int) -> None:
    """Do it, and leave at once:

    torch's own end sometimes aborts once DDP has used a process group.
    """
    folder = Path(folder_name)
    task: Task = asked(folder)
    try:
        told = tell(task, folder, rank)
    except Findings as findings:
        told = WorkerResult(tuple(findings.diagnostics))
    # whatever the libraries raise while they build what the settings describe
    except Exception as error:
        traceback.print_exc()
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__} at {place.filename}:{place.lineno}: {first_line(error)}"
        told = WorkerResult((Diagnostic("objects-not-built", message),))
    answer(folder, rank, told)


def tell(task: Task, folder: Path, rank: int) -> WorkerResult:
    """What one process has found.

    Raises:
        Findings: what stood in the way of building the objects.
    """
    world = task.small.processes
    placement = place(task.small.run, rank, world)
    torch.set_num_threads(placement.threads)
    if world > 1:
        rendezvous = f"file://{folder}/rendezvous"
        dist.init_process_group(
            "gloo",
            init_method=rendezvous,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=PATIENCE),
        )
    own = folder / f"rank{rank}"
    own.mkdir()
    session = open_small_session(task, own, Ranks(rank, world, rank, world))
    seen, asked = observe_run(session), expected_settings(session.run)
    findings: tuple[Diagnostic, ...] = ()
    try:
        check_arrival(session, task.origins)
    except Findings as different:
        findings = different.diagnostics
    return WorkerResult(
        findings, frozenset(observed_settings(asked, seen)), frozenset(unobserved(asked, seen))
    )


def open_small_session(task: Task, folder: Path, ranks: Ranks) -> Session:
    """The session of a run that is about to train, small. Nothing is written outside `folder`, and
    no row is read.

    Raises:
        Findings: what stands in the way.
    """
    run = task.small.run
    processor = _processor(task, run)
    config = model_config(run.model, processor)
    if task.run.model.path is not None and (Path(task.run.model.path) / "config.json").exists():
        keep_flags(config, task.run.model)
    config.save_pretrained(folder)
    model = prepare_model(run, build_model(run.model, processor, folder, run.run.seed))
    entries = {"train": run.data.train, "validation": run.data.validation, "test": run.data.test}
    sources = {
        split: Rows(entry if all(map(_opened, entry)) else ())
        for split, entry in entries.items()
        if entry
    }
    rows = {split: EncodedRows(source, processor, run.data) for split, source in sources.items()}
    # Of epochs, enough rows for the warm-up: how many of the real ones can be used, only their
    # audit tells.
    steps_an_epoch = 1 if run.train.steps else 8 + run.optim.warmup_steps // (run.train.epochs or 1)
    count = run.data.global_batch_size * steps_an_epoch
    ledger = Ledger.of(RowAudit(index, tokens=1) for index in range(count))
    return Session.open(
        run, rows, model, ranks, ledgers={"train": ledger}, folder=RunFolder(run.folder)
    )


def _processor(task: Task, run: Run) -> Processor:
    """With the image and the video processor of the model's own folder, where that has them."""
    processor, known = (
        new_processor(run.model, run.data.image, [], run.data.video),
        load_family(run.model.family),
    )
    path = task.run.model.path
    if path is None or not any(
        (Path(path) / name).exists()
        for name in ("preprocessor_config.json", "processor_config.json")
    ):
        return processor
    try:
        own = known.image_processor_class().from_pretrained(path, local_files_only=True)
        videos = video_processor(known, video_settings_in(Path(path)))
    except Exception as error:  # its reader raises what its file's format raises
        message = f"{path}: the image or the video processor cannot be read: {first_line(error)}"
        raise Findings(
            Diagnostic("model-does-not-load", message, parameter="model.path")
        ) from error
    return with_sizes(
        replace(processor, image_processor=own, video=videos), run.data.image, run.data.video
    )


def keep_flags(config: object, model: Model) -> None:
    """Take over from the folder's config.json what a small model can have of it."""
    from transformers import AutoConfig

    try:
        given = AutoConfig.from_pretrained(model.path, local_files_only=True)
    except Exception as error:
        message = f"{model.path}: config.json cannot be read: {first_line(error)}"
        raise Findings(
            Diagnostic("model-does-not-load", message, parameter="model.path")
        ) from error
    text, own = given.get_text_config(), config.get_text_config()  # type: ignore[attr-defined]
    for name in KEPT:
        if hasattr(text, name):
            setattr(own, name, getattr(text, name))
    config.tie_word_embeddings = own.tie_word_embeddings  # type: ignore[attr-defined]
    if "rope_type" in (given_positions := getattr(text, "rope_parameters", None) or {}):
        own.rope_parameters = {
            **given_positions,
            **own.rope_parameters,
            "rope_type": given_positions["rope_type"],
        }


def _opened(source: Source) -> bool:
    """Whether a source's rows are found.

    A recipe of another trainer may name files that are on another machine.
    """
    if not isinstance(source, MessagesSource):
        return True
    return (file := Path(source.path)).is_file() and file.stat().st_size <= LARGEST_FILE
