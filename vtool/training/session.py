"""The objects of a run that is about to train, and its progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.data.audit import Ledger
from vtool.data.loader import EncodedRows, MicroBatch, micro_batches_for_step
from vtool.data.mixture import parts_of_epoch
from vtool.data.plan import Plan
from vtool.diagnostics import Diagnostic
from vtool.engines.contract import Engine
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.evaluation.evaluate import Scores, evaluate_rows
from vtool.families.family import Family, load_family
from vtool.models.components import count_components
from vtool.models.processor import Processor
from vtool.models.tower_index import tower_indexer
from vtool.training.best import BestSoFar
from vtool.training.checkpoint import Snapshot, open_checkpoint
from vtool.training.model_and_engine import build_engine
from vtool.training.run_folder import RunFolder
from vtool.training.schedule import learning_rate


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The settings that start a run; every rank is given them."""

    run: Run
    effective: Mapping[str, Any]
    """The settings after defaults, as plain values."""
    config_yaml: str
    """The settings as YAML text with their origins, for config.yaml."""
    origins: Origins | None = None
    """The places where settings were given, for findings."""
    proofs: Mapping[str, Any] | None = None
    """The proofs made before the start, for `proofs.json`; None writes no such file."""


@dataclass(slots=True)
class Progress:
    """The counts of a run, which a checkpoint keeps."""

    step: int
    seconds: float
    """Seconds of all steps together, without evaluations and checkpoints."""
    visits: Tensor
    """Visits of each row of the training split, over all ranks: int64 [rows]."""
    marks: BestSoFar = field(default_factory=BestSoFar)
    """The best evaluation, and those since."""

    @classmethod
    def of(cls, rows: int) -> "Progress":
        """Return the progress of a run that has not begun, over `rows` rows."""
        return cls(0, 0.0, torch.zeros(rows, dtype=torch.long))


@dataclass(frozen=True, slots=True)
class Session:
    """A run on one rank: its settings, rows, plan and engine."""

    run: Run
    folder: RunFolder
    ranks: Ranks
    family: Family
    processor: Processor
    rows: Mapping[str, EncodedRows]
    """Encoded rows by split; a split without settings is missing."""
    ledgers: Mapping[str, Ledger]
    plan: Plan
    total_steps: int
    engine: Engine
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Parameters of each part of the model, and those that are trained."""

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
        weights: Mapping[str, Tensor] | None = None,
    ) -> "Session":
        """Plan the steps over the kept rows, and build the engine around the model.

        Args:
            rows: by split, all with one processor.
            model: as `prepare_model` leaves it.
            weights: by the model's names, of parameters on the meta device.

        Raises:
            SharedFindings: `warmup-too-long`, or what the engine cannot do here.
        """
        plan, family = plan_rows(run, ledgers["train"]), load_family(run.model.family)
        parts = count_components(model, family)  # an engine keeps a share of it
        for encoded in rows.values():
            encoded.tower = tower_indexer(family, model)
        return cls(
            run,
            folder,
            ranks,
            family,
            rows["train"].processor,
            rows,
            ledgers,
            plan,
            count_steps(run, plan),
            build_engine(run, model, ranks, weights),
            parts,
        )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, from 1."""
        return learning_rate(self.run.optim, step, self.total_steps)

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Return this rank's micro-batches of a step, from 1."""
        data, ledger = self.engine.data, self.ledgers["train"]
        return micro_batches_for_step(
            self.run.data, self.plan, ledger.kept, ledger.lengths, step, data.rank, data.world
        )


def plan_rows(run: Run, ledger: Ledger) -> Plan:
    """Return which of the kept rows are in which step."""
    # of rows in memory, which are no recipe's, there is no count of sources
    parts = parts_of_epoch(run.data.train, [count.kept for count in ledger.by_source])
    return Plan(len(ledger.kept), run.data.global_batch_size, run.run.seed, parts)


def count_steps(run: Run, plan: Plan, origins: Origins | None = None) -> int:
    """Return the number of steps of a whole run.

    Raises:
        SharedFindings: `warmup-too-long`.
    """
    total = run.train.total(plan.steps_per_epoch)
    if 0 < run.optim.warmup(total) >= total:
        name = "optim.warmup_steps"
        message = f"{name} is {run.optim.warmup_steps}, and the run has {total} steps"
        help = f"set {name} below {total}, or raise train.epochs"
        origin = origins.near(name) if origins else None
        raise SharedFindings(Diagnostic("warmup-too-long", message, help, name, origin))
    return total


def evaluate_split(session: Session, split: str) -> Scores:
    """Evaluate the model on a split's kept rows; every rank calls this."""
    kept = session.ledgers[split].kept
    return evaluate_rows(session.engine, session.rows[split], kept, session.run.evaluation)


def snapshot(session: Session, progress: Progress) -> Snapshot:
    """Return the state that the run resumes from."""
    model, optimizer = session.engine.model_state, session.engine.optimizer_state
    state = {
        "seconds": progress.seconds,
        "ranks": session.ranks.world,
        "torch": torch.__version__,
        "order": session.plan.order,
        "marks": progress.marks.as_dict(),
    }
    return Snapshot(progress.step, model, optimizer, progress.visits, state)


def restore_checkpoint(engine: Engine, checkpoint: Path, plan: Plan | None = None) -> Progress:
    """Load a checkpoint into an engine, and return its run's progress.

    Its digests have been checked.

    Args:
        plan: the run's, which must order rows as the checkpoint's did.

    Raises:
        SharedFindings: `data-changed`.
    """
    found = open_checkpoint(checkpoint)
    before = found.state.get("order")  # one of an older vtool has none
    if plan is not None and before not in (None, plan.order):
        message = f"{checkpoint} has rows in the order of {before}, and this run of {plan.order}"
        help = "resume with the vtool that began the run"
        raise SharedFindings(Diagnostic("data-changed", message, help, parameter="data.train"))
    engine.load_state(found.model, found.optimizer)
    marks = BestSoFar.of(found.state.get("marks"))
    return Progress(found.step, found.state["seconds"], found.visits, marks)
