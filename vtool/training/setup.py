"""Everything a run needs before its first step:

rows audited, processor and model built, and where it goes on from.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from vtool.config import schema
from vtool.config.schema import Run
from vtool.data.audit import Ledger, build_ledger, inspect_rows, warnings
from vtool.data.loader import EncodedRows
from vtool.data.row import Row
from vtool.data.sources import Rows
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.models.build import GENERATION, model_config
from vtool.models.model_class import model_class
from vtool.models.processor import load_processor, new_processor
from vtool.training.agreement import check_same_model
from vtool.training.base import keep_base
from vtool.training.model_and_engine import build_trained_model, check_engine
from vtool.training.modeling import keep_class
from vtool.training.run_folder import RunFolder, write_atomically
from vtool.training.session import (
    Progress,
    Request,
    Session,
    count_steps,
    plan_rows,
    restore_checkpoint,
)
from vtool.training.start import Start, check_rows

SPLITS = ("train", "validation", "test")


def set_up_run(
    request: Request, folder: RunFolder, start: Start, ranks: Ranks
) -> tuple[Session, Progress]:
    """Audit the rows, build what the run trains with, and take up a checkpoint.

    Raises:
        Findings: of the rows, of the model's folder, `ranks-differ`, or `data-changed`; on every
            rank.
    """
    run = request.run
    check_engine(run, ranks)
    # what stands against it is told before rows are read
    model_class(run.model.family, run.model.modeling)
    entries = {"train": run.data.train, "validation": run.data.validation, "test": run.data.test}
    sources = ranks.on_rank_zero(
        lambda: {split: Rows(entry) for split, entry in entries.items() if entry}
    )
    if start.checkpoint is None:
        ranks.on_rank_zero(lambda: _write_processor(run, sources["train"], folder))
    else:
        ranks.on_rank_zero(lambda: _copy_processor(start, folder))
    ranks.barrier()
    processor = load_processor(folder.processor, run.model.family, run.data.image, run.data.video)
    rows = {split: EncodedRows(source, processor, run.data) for split, source in sources.items()}
    ledgers = audit(rows, ranks)
    if ranks.rank == 0:
        for split, ledger in ledgers.items():
            print(f"data.{split}: {ledger.in_words()}", flush=True)
            for warning in warnings(ledger, run, split):
                print(
                    f"warning[{warning.rule} {warning.code}]: {warning.message}\n  help:"
                    f" {warning.remedy}",
                    flush=True,
                )
        for note in _ignored(run, ranks):
            print(
                f"{note.severity}[{note.rule} {note.code}]: {note.message}\n  help: {note.remedy}",
                flush=True,
            )

    # before the run's folder has a config: a warm-up that is too long is no run
    count_steps(run, plan_rows(run, ledgers["train"]))
    ranks.on_rank_zero(lambda: _write_head(folder, request, ledgers, start.began or folder))

    keep_class(run, folder, start, ranks)
    if longer := over_budget(run, ledgers["train"]):
        raise SharedFindings(longer)
    if run.lora is not None:
        ranks.on_rank_zero(lambda: keep_base(run, folder, processor, start))
    model = build_trained_model(run, folder, processor, weights=start.checkpoint is None)
    # a checkpoint without adapters replaces every weight, of one file for all ranks
    if start.checkpoint is None or run.lora is not None:
        check_same_model(model, ranks)
    session = Session.open(run, rows, model, ranks, ledgers=ledgers, folder=folder)
    if start.checkpoint is not None:
        return session, restore_checkpoint(session.engine, start.checkpoint)
    return session, Progress.of(len(sources["train"]))


def audit(rows: Mapping[str, EncodedRows], ranks: Ranks) -> dict[str, Ledger]:
    """Look at every row of every split, each rank its share; raise all that was found at once."""
    ledgers: dict[str, Ledger] = {}
    findings: list[Diagnostic] = []
    for split, encoded in rows.items():
        mine = inspect_rows(
            encoded, range(len(encoded.rows))[ranks.rank :: ranks.world], encoded.settings.workers
        )
        everyone = [one for share in ranks.all_gather_objects(mine) for one in share]
        ledgers[split], found = build_ledger(encoded, everyone, split)
        findings += found
    if findings:
        raise SharedFindings(findings)
    return ledgers


def over_budget(run: Run, ledger: Ledger) -> list[Diagnostic]:
    """Rows that no micro-batch has room for."""
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


def _ignored(run: Run, ranks: Ranks) -> Iterator[Diagnostic]:
    """What a rule of settings could not say before the device was chosen (config/rules/ignored.py)."""
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


def _write_processor(run: Run, rows: Rows, folder: RunFolder) -> None:
    """Keep the processor and the model's config in the run's folder, so that the run needs nothing
    else to go on.
    """
    processor = new_processor(run.model, run.data.image, read_texts(rows), run.data.video)
    with folder.writing():
        if folder.processor.exists():  # of a start that did not get far
            shutil.rmtree(folder.processor)
        processor.save(folder.processor)
        model_config(run.model, processor).save_pretrained(folder.processor)
        if (
            run.model.starts_from == "pretrained"
            and run.model.path
            and (given := Path(run.model.path) / GENERATION).exists()
        ):
            shutil.copy(given, folder.processor)


def _copy_processor(start: Start, folder: RunFolder) -> None:
    """A run that begins from another's checkpoint has that run's processor."""
    assert start.began is not None
    if not folder.processor.exists():
        with folder.writing():
            temporary = folder.processor.with_name(".writing-processor")
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.copytree(start.began.processor, temporary)
            temporary.rename(folder.processor)


def read_texts(rows: Rows) -> list[str]:
    """What a new tokenizer is trained on.

    Rows that cannot be read are left for the audit to report.
    """

    def read(index: int) -> Row | None:
        try:
            return rows.row(index)
        except Findings:
            return None

    return [text for index in range(len(rows)) if (row := read(index)) for text in row.texts()]


def _write_head(
    folder: RunFolder, request: Request, ledgers: Mapping[str, Ledger], began: RunFolder
) -> None:
    """Write what a run begins with;

    where it goes on, hold the rows against those that it began with.
    """
    written = {split: ledger.as_dict() for split, ledger in ledgers.items()}
    # written after the rows: a run that has not got so far has no rows of its own yet
    if began.config.exists():
        check_rows(began, written)
    with folder.writing():
        write_atomically(folder.data, json.dumps(written, indent=1))
        if request.proofs is not None:
            write_atomically(folder.proofs, json.dumps(request.proofs, indent=1))
        if not folder.config.exists():  # once: it says what the run began with, and from where
            write_atomically(folder.config, request.config_yaml)
