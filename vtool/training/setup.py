"""Everything a run needs before its first step:

rows audited, processor and model built, and where it goes on from.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vtool.config import schema
from vtool.config.megatron import Language
from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.data.audit import Ledger, build_ledger, inspect_rows, warnings
from vtool.data.loader import EncodedRows, MicroBatch, micro_batches_for_step
from vtool.data.plan import Plan
from vtool.data.row import Row
from vtool.data.sources import Rows
from vtool.devices import kind_of
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.contract import Engine
from vtool.engines.ddp import Ddp
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.families import FAMILIES
from vtool.families.family import Family, load_family
from vtool.families.windows import packing_conflict, window_of
from vtool.models.adapters import add_adapters, freeze_parts
from vtool.models.attention import attend_by_document, attend_by_row
from vtool.models.build import GENERATION, build_model, model_config
from vtool.models.modeling import model_class
from vtool.models.processor import Processor, load_processor, new_processor
from vtool.training.agreement import check_same_model
from vtool.training.base import base_settings, keep_base
from vtool.training.checkpoint import Snapshot, load
from vtool.training.modeling import keep_class
from vtool.training.parameter_groups import build_optimizer
from vtool.training.run_folder import RunFolder, write_atomically
from vtool.training.schedule import learning_rate
from vtool.training.start import Start, check_rows

SPLITS = ("train", "validation", "test")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class Request:
    """What a run is started with; it travels to every rank."""

    run: Run
    effective: Mapping[str, Any]
    """The settings after defaults, as plain values."""
    config_yaml: str
    """The same, as text with origins."""
    origins: Origins | None = None
    """Where each setting was given, for findings."""
    proofs: Mapping[str, Any] | None = None
    """What was proved of the recipe before the start, as `proofs.json` keeps it;

    None: nothing is said of it.
    """


@dataclass(slots=True)
class Progress:
    """What a run counts as it goes; a checkpoint keeps it."""

    step: int
    seconds: float
    visits: Tensor
    """int64 [rows]:

    how often each row of the training split has been trained on, over all ranks.
    """


@dataclass(frozen=True, slots=True)
class Session:
    """One rank's view of a run that is about to train."""

    run: Run
    folder: RunFolder
    ranks: Ranks
    family: Family
    processor: Processor
    rows: Mapping[str, EncodedRows]
    """By split; a split without settings is not there."""
    ledgers: Mapping[str, Ledger]
    plan: Plan
    total_steps: int
    engine: Engine

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 1."""
        return learning_rate(self.run.optim, step, self.total_steps)

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """This rank's micro-batches of a step, from 1."""
        data, ledger = self.engine.data, self.ledgers["train"]
        return micro_batches_for_step(
            self.run.data, self.plan, ledger.kept, ledger.lengths, step, data.rank, data.world
        )


def open_session(
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

    plan = Plan(len(ledgers["train"].kept), run.data.global_batch_size, run.run.seed)
    total = count_steps(run, plan)
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
    engine = build_engine(run, model, ranks)
    progress = Progress(0, 0.0, torch.zeros(len(sources["train"]), dtype=torch.long))
    if start.checkpoint is not None:
        progress = restore_checkpoint(engine, start.checkpoint)
    return (
        Session(
            run,
            folder,
            ranks,
            load_family(run.model.family),
            processor,
            rows,
            ledgers,
            plan,
            total,
            engine,
        ),
        progress,
    )


def snapshot(session: Session, progress: Progress) -> Snapshot:
    """All that a run goes on from; every rank asks, and rank 0 has it whole."""
    model, optimizer = session.engine.model_state(), session.engine.optimizer_state()
    state = {"seconds": progress.seconds, "ranks": session.ranks.world, "torch": torch.__version__}
    return Snapshot(progress.step, model, optimizer, {"visits": progress.visits}, state)


def restore_checkpoint(engine: Engine, checkpoint: Path) -> Progress:
    """Load a checkpoint whose digests have been checked into an engine, and say how far its run
    was.
    """
    found = load(checkpoint)
    engine.load_state(found.model, found.optimizer)
    return Progress(found.step, found.state["seconds"], found.progress["visits"])


def count_steps(run: Run, plan: Plan) -> int:
    """The steps of a whole run.

    Raises:
        SharedFindings: `warmup-too-long`.
    """
    total = run.train.steps or (run.train.epochs or 0) * plan.steps_per_epoch
    if 0 < run.optim.warmup_steps >= total:
        message = f"optim.warmup_steps is {run.optim.warmup_steps}, and the run has {total} steps"
        raise SharedFindings(Diagnostic("warmup-too-long", message, parameter="optim.warmup_steps"))
    return total


def build_trained_model(
    run: Run, folder: RunFolder, processor: Processor, *, weights: bool
) -> nn.Module:
    """The model as it goes into an engine: frozen where it is not trained, and with its adapters,
    which the engine must see.

    Args:
        weights: false where a checkpoint's weights follow. Of a run with adapters, a checkpoint has
            no others.
    """
    settings = run.model if run.lora is None else base_settings(run, folder)
    model: nn.Module = build_model(
        settings, processor, folder.processor, run.run.seed, weights=weights or run.lora is not None
    )
    return prepare_model(run, model)


def prepare_model(run: Run, model: nn.Module) -> nn.Module:
    """Give the model the attention that rows and device want, freeze what is not trained, and put
    the adapters in, in place.

    Raises:
        SharedFindings: `not-built-on-engine`, of packed rows for a model with windows.
    """
    of = load_family(run.model.family)
    if run.data.packing != "none":
        text: Any = model.config.get_text_config()  # type: ignore[operator,union-attr]
        window = window_of(
            getattr(text, "layer_types", None), getattr(text, "sliding_window", None)
        )
        if found := packing_conflict(window, run.data.micro_batch_tokens):
            raise SharedFindings(Diagnostic("not-built-on-engine", *found, "data.packing"))
        attend_by_document(model)
    elif run.model.attention == "sdpa" and kind_of(run) == "npu":
        attend_by_row(model)
    freeze_parts(model, of, run.model.freeze)
    if run.lora is not None:
        add_adapters(model, of, run.model.freeze, run.lora, run.run.seed)
    return model


def build_engine(run: Run, model: nn.Module, ranks: Ranks) -> Engine:
    """The engine of a run's settings, around its model.

    Raises:
        SharedFindings: what this engine does not do here.
    """
    dtype = DTYPES[run.model.dtype]

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(module, run.optim, load_family(run.model.family).component)

    match run.engine:
        case schema.Ddp():
            return Ddp(model, run.engine, ranks, dtype, optimizer)
        case schema.Fsdp2():
            from vtool.engines.fsdp2 import Fsdp2

            return Fsdp2(
                model,
                load_family(run.model.family).blocks(model),
                run.engine,
                ranks,
                dtype,
                optimizer,
            )
        case schema.Megatron():
            from vtool.engines.megatron.engine import Megatron

            part = load_family(run.model.family).component
            engine = Megatron(
                model,
                run.engine,
                run.optim,
                ranks,
                dtype,
                part,
                checkpointing=run.model.gradient_checkpointing,
            )
            if run.data.packing != "none" and not engine.heeds_masks:
                message = (
                    "data.packing is token_budget, and megatron-core's layers here look at no mask:"
                    " documents would see each other"
                )
                raise SharedFindings(
                    Diagnostic(
                        "not-built-on-engine",
                        message,
                        "set data.packing=none, or engine=fsdp2",
                        "data.packing",
                    )
                )
            return engine


def check_engine(run: Run, ranks: Ranks) -> None:
    """What an engine can say of its settings once device and processes are known, before rows are
    read.
    """
    if isinstance(run.engine, schema.Megatron):
        from vtool.engines.megatron.start import check_start

        # A model's folder has been looked at by the rules, which know nothing of the models that
        # have random weights.
        size = (
            FAMILIES[run.model.family].sizes[run.model.size or ""]
            if run.model.starts_from == "random"
            else None
        )
        language = Language(size["heads"], size["kv_heads"], size["layers"]) if size else None
        model, adapters = run.model, run.lora is not None
        check_start(
            run.engine,
            ranks,
            family=model.family,
            dtype=model.dtype,
            adapters=adapters,
            language=language,
        )


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
