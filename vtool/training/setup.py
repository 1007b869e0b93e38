"""The set-up of a run before its first step: rows, processor, model, engine, checkpoint."""

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from vtool.config import schema
from vtool.config.schema import Run
from vtool.config.schema.data import MOST_TEXT_BYTES
from vtool.data.audit import Ledger, audit_warnings, set_digests
from vtool.data.audit_cache import audit_split, usual_cache
from vtool.data.detect import describe_source, source_messages
from vtool.data.ledgers import build_ledgers, with_held_back
from vtool.data.loader import EncodedRows
from vtool.data.row import Row
from vtool.data.row_audits import RowAudits
from vtool.data.sources import Rows, open_splits
from vtool.data.turns import prepare_rows
from vtool.devices import own_cores
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.printable import printable
from vtool.diagnostics.progress import working
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.model_folder import GENERATION
from vtool.models.build import model_config
from vtool.models.mapped_weights import left_out
from vtool.models.model_class import model_class
from vtool.models.processor import load_processor, new_processor
from vtool.training.agreement import check_same_model, on_every_rank
from vtool.training.attention_here import check_attention
from vtool.training.base import keep_base
from vtool.training.best import check_metrics
from vtool.training.extend import Extension, plan_extension, record_extension
from vtool.training.kept_processor import record_processor, take_processor
from vtool.training.micro_batch import choose_micro_batch, print_state
from vtool.training.model_and_engine import build_trained_model, check_engine
from vtool.training.modeling import keep_class
from vtool.training.own_folder import write_atomically
from vtool.training.recompute import choose_recompute
from vtool.training.run_folder import RunFolder
from vtool.training.session import (
    Progress,
    RunRequest,
    Session,
    count_steps,
    plan_rows,
    restore_checkpoint,
)
from vtool.training.start import Start, check_rows
from vtool.words import plural

MOST_ROWS_READ = 50_000
"""Rows that a new tokenizer of a few hundred entries is trained on: more would only take longer."""


def set_up_run(
    request: RunRequest, folder: RunFolder, start: Start, ranks: Ranks
) -> tuple[Session, Progress]:
    """Audit the rows, build what the run trains with, and restore a checkpoint.

    Raises:
        Findings: of the rows, of the model's folder, `ranks-differ`, or `data-changed`; on every
            rank.
    """
    run = _with_workers(request.run, ranks)
    check_engine(run, ranks)
    check_attention(run, ranks)
    # what stands against it is reported before rows are read
    model_class(run.model.family, run.model.modeling)
    with working("opening the rows"):
        sources = ranks.on_rank_zero(lambda: open_splits(run.data))
    if start.checkpoint is None:
        ranks.on_rank_zero(lambda: _write_processor(run, sources["train"], folder, start))
    else:
        ranks.on_rank_zero(lambda: take_processor(start, folder))
    ranks.barrier()
    processor = load_processor(folder.processor, run.model.family, run.data.image, run.data.video)
    for source in sources.values():
        prepare_rows(source, processor, run.data)
    rows = with_held_back(
        run.data,
        {split: EncodedRows(source, processor, run.data) for split, source in sources.items()},
    )
    ledgers = audit_splits(rows, ranks, own_cores(run, ranks.local_world))
    if ranks.rank == 0:
        for split, ledger in ledgers.items():
            _print_ledger(run, split, ledger)
        _print_notes((*_ignored_on_device(run, ranks), *_left_out(run)))

    # before the run's folder has a config: a warm-up that is too long is no run
    plan = plan_rows(run, ledgers["train"])
    count_steps(run, plan, request.origins)
    extension = plan_extension(run, start, plan.steps_per_epoch)
    ranks.on_rank_zero(lambda: _write_run_files(folder, request, ledgers, start, extension))
    if extension is not None and ranks.rank == 0:
        print(extension.in_words(run.optim), flush=True)

    keep_class(run, folder, start, ranks)
    if longer := over_budget(run, ledgers["train"]):
        raise SharedFindings(longer)
    if run.lora is not None:
        with working("reading the weights beneath the adapters"):
            ranks.on_rank_zero(lambda: keep_base(run, folder, processor, start))
    run = choose_recompute(run, ledgers["train"], folder, ranks)
    with working("building the model"):
        model, weights = on_every_rank(
            ranks, lambda: build_trained_model(run, folder, processor, start)
        )
    # a checkpoint without adapters replaces every weight, of one file for all ranks
    if start.checkpoint is None or run.lora is not None:
        check_same_model(model, ranks, weights)
    run = choose_micro_batch(run, model, ledgers["train"], ranks)
    print_state(run, model, ranks)
    with working("building the engine"):
        session = Session.open(
            run,
            rows,
            model,
            ranks,
            ledgers=ledgers,
            folder=folder,
            weights=weights.tensors,
        )
    if "validation" in rows:
        check_metrics(run, tuple(rows["validation"].rows.names))
    if start.checkpoint is not None:
        with working("loading the checkpoint"):
            progress = restore_checkpoint(session.engine, start.checkpoint, session.plan)
        if extension is not None:
            progress.marks = progress.marks.extended()
        return session, progress
    return session, Progress.of(len(sources["train"]))


def _with_workers(run: Run, ranks: Ranks) -> Run:
    """Return the run with `data.workers` set, where its recipe leaves that open.

    On CUDA rows are encoded outside the training process, which queues kernels; a CPU that computes
    the model has no cores to spare, and what touches an NPU does not survive a fork.
    """
    if run.data.workers is not None:
        return run
    workers = "auto" if ranks.device.type == "cuda" else 0
    return run.model_copy(update={"data": run.data.model_copy(update={"workers": workers})})


def _print_ledger(run: Run, split: str, ledger: Ledger) -> None:
    """Print a split's sources, row counts and warnings."""
    for source in () if ledger.held_back else ledger.sources:
        if "layout" in source:
            print(f"data.{split}: {describe_source(source)}", flush=True)
        for message in source_messages(source):
            print(printable(f"data.{split}: {message}"), flush=True)
    if ledger.held_back:
        print(f"data.{split}: {ledger.held_back}", flush=True)
    print(f"data.{split}: {ledger.in_words()}", flush=True)
    for line in ledger.sources_in_words():
        print(printable(f"  {line}"), flush=True)
    _print_notes(audit_warnings(ledger, run, split))


def audit_splits(
    rows: Mapping[str, EncodedRows], ranks: Ranks, cores: int = 1
) -> dict[str, Ledger]:
    """Audit every row of every split, each rank its share, and raise all findings at once.

    Args:
        rows: as `with_held_back` returns them.
        cores: those that a rank may use, where `data.workers` is `auto`.
    """
    settings = rows["train"].settings
    audited: dict[str, RowAudits] = {}
    for split, encoded in rows.items():
        if split in settings.split.shares:
            continue
        began = time.monotonic()
        cache = usual_cache(encoded)
        own = encoded.rows.taken()[ranks.rank :: ranks.world]
        audits = RowAudits.joined(ranks.all_gather_objects(audit_split(encoded, own, cache, cores)))
        if cache and ranks.rank == 0:
            cache.write(audits, time.monotonic() - began)
        set_digests(encoded, audits)
        audited[split] = audits
    made = build_ledgers(settings, rows, audited)
    findings = [one for each in made.values() for one in each.findings]
    findings += [one for each in made.values() for one in each.shared if one.severity == "error"]
    if findings:
        raise SharedFindings(findings)
    return {
        split: replace(each.ledger, quality_findings=(*each.ledger.quality_findings, *each.shared))
        for split, each in made.items()
    }


def over_budget(run: Run, ledger: Ledger) -> list[Diagnostic]:
    """Return the finding for rows that no micro-batch has room for."""
    budget = run.data.micro_batch_tokens
    longer = (
        []
        if budget is None
        else [
            row for row, tokens in zip(ledger.kept, ledger.lengths, strict=True) if tokens > budget
        ]
    )
    if not longer:
        return []
    name, longest = "data.micro_batch_tokens", max(ledger.lengths)
    message = (
        f"{len(longer)} of {len(ledger.kept)} rows have more than {name}={budget} tokens, the"
        f" longest {longest}"
    )
    return [
        Diagnostic("packing-budget", message, f"set {name}={longest}, or data.max_length", name)
    ]


def _print_notes(findings: Iterable[Diagnostic]) -> None:
    for note in findings:
        head = f"{note.severity}[{note.rule} {note.code}]: {note.message}"
        print(f"{head}\n  help: {note.remedy}", flush=True)


def _left_out(run: Run) -> Iterator[Diagnostic]:
    """Yield a note on weights of the model's folder that are neither trained nor exported."""
    if run.model.path is None or run.model.starts_from == "random" or run.lora is not None:
        return
    if names := left_out(Path(run.model.path), run.model.family):
        first = f"{names[0]}{', …' if len(names) > 1 else ''}"
        yield Diagnostic(
            "weights-left-out",
            f"{run.model.path}: {plural(len(names), 'weight')} that transformers' class leaves out"
            f" ({first}): neither trained nor exported",
            parameter="model.path",
        )


def _ignored_on_device(run: Run, ranks: Ranks) -> Iterator[Diagnostic]:
    """Yield findings that need the chosen device (config/rules/ignored.py has the others)."""
    if (
        isinstance(run.engine, schema.Fsdp2)
        and run.engine.cpu_offload
        and run.device.kind == "auto"
        and ranks.device.type == "cpu"
    ):
        message = (
            "engine.cpu_offload is true, but device.kind=auto has found a CPU only: the weights are"
            " in its memory in any case"
        )
        yield Diagnostic(
            "ignored-setting", message, "set engine.cpu_offload=false", "engine.cpu_offload"
        )


_MENDED = ("templates-differ", "processor-class-differs", "processor-files-differ")
"""Findings about the folder of a model that its copy in the run's folder has no more."""


def _write_processor(run: Run, rows: Rows, folder: RunFolder, start: Start) -> None:
    """Write the processor and the model's config into the run's folder.

    The run then needs nothing else to resume.
    """
    begun, source = start.weights, run.model.path and Path(run.model.path)
    if begun is None:
        texts = [] if source else read_texts(rows)
        processor = new_processor(run.model, run.data.image, texts, run.data.video, run.data)
    else:
        source, sizes = begun.config, (run.data.image, run.data.video)
        processor = load_processor(
            begun.processor, run.model.family, *sizes, config_of=source, data=run.data
        )
    _print_notes(note for note in processor.notes if note.rule in _MENDED)
    with folder.writing():
        if folder.processor.exists():  # of a start that did not get far
            shutil.rmtree(folder.processor)
        processor.save(folder.processor)
        # of a folder, wherever there is one
        config = {"path": str(source), "init": "pretrained"} if source else {}
        settings = run.model.model_copy(update=config)
        model_config(settings, processor).save_pretrained(folder.processor)
        if source and (given := source / GENERATION).exists():
            shutil.copy(given, folder.processor)
        record_processor(folder)


def read_texts(rows: Rows) -> Iterator[str]:
    """Yield the texts that a new tokenizer is trained on: of many rows, those of every n-th.

    Rows that cannot be read, and texts as long as a whole file, are left for the audit to report.
    """

    def read(index: int) -> Row | None:
        try:
            return rows.row(index)
        except Findings:
            return None

    taken = rows.taken()
    every = -(-len(taken) // MOST_ROWS_READ) or 1
    for index in taken[::every]:
        if row := read(index):
            yield from (text for text in row.texts() if len(text) <= MOST_TEXT_BYTES)


def _write_run_files(
    folder: RunFolder,
    request: RunRequest,
    ledgers: Mapping[str, Ledger],
    start: Start,
    extension: Extension | None,
) -> None:
    """Write data.json, proofs.json, from.json and config.yaml; check a resumed run's rows."""
    origin = start.origin or folder
    written = {split: ledger.as_dict() for split, ledger in ledgers.items()}
    # written after the rows: a run that has not got so far has no rows of its own yet
    if origin.config.exists():
        check_rows(origin, written)
    with folder.writing():
        write_atomically(folder.data, json.dumps(written, indent=1))
        if request.proofs is not None:
            write_atomically(folder.proofs, json.dumps(request.proofs, indent=1))
        if start.weights is not None:
            described = json.dumps(start.weights.as_dict(), indent=1) + "\n"
            write_atomically(folder.begun_from, described)
        if extension is not None:
            record_extension(folder, extension)
        # once: it says what the run began with, and from where
        if not folder.config.exists() or extension is not None:
            write_atomically(folder.config, request.config_yaml)
