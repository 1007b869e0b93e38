"""A run that is about to train: what starts it, what it has, and how far it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.data.audit import Ledger
from vtool.data.loader import EncodedRows, MicroBatch, micro_batches_for_step
from vtool.data.plan import Plan
from vtool.diagnostics import Diagnostic
from vtool.engines.contract import Engine
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.families.family import Family, load_family
from vtool.models.processor import Processor
from vtool.training.checkpoint import Snapshot, load
from vtool.training.model_and_engine import build_engine
from vtool.training.run_folder import RunFolder
from vtool.training.schedule import learning_rate


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

    @classmethod
    def of(cls, rows: int) -> "Progress":
        """Return the progress of a run that has not begun, over `rows` rows."""
        return cls(0, 0.0, torch.zeros(rows, dtype=torch.long))


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

    @classmethod
    def open(
        cls,
        run: Run,
        rows: Mapping[str, EncodedRows],
        model: nn.Module,
        ranks: Ranks,
        *,
        ledgers: Mapping[str, Ledger],
        folder: RunFolder,
        total_steps: int | None = None,
    ) -> "Session":
        """Plan the steps over the kept rows, and build the engine around the model.

        Args:
            rows: by split, all with one processor.
            model: as `prepare_model` leaves it.
            total_steps: in place of what the run's settings `train` say.

        Raises:
            SharedFindings: `warmup-too-long`, or what the engine cannot do here.
        """
        plan = plan_rows(run, ledgers["train"])
        return cls(
            run,
            folder,
            ranks,
            load_family(run.model.family),
            rows["train"].processor,
            rows,
            ledgers,
            plan,
            total_steps or count_steps(run, plan),
            build_engine(run, model, ranks),
        )

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 1."""
        return learning_rate(self.run.optim, step, self.total_steps)

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """This rank's micro-batches of a step, from 1."""
        data, ledger = self.engine.data, self.ledgers["train"]
        return micro_batches_for_step(
            self.run.data, self.plan, ledger.kept, ledger.lengths, step, data.rank, data.world
        )


def plan_rows(run: Run, ledger: Ledger) -> Plan:
    """Return which of the kept rows are in which step."""
    return Plan(len(ledger.kept), run.data.global_batch_size, run.run.seed)


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
