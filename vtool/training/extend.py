"""A run that continues beyond the end that it was planned with (`checkpoint.resume=extend`)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vtool.config.schema import Optim, Run, Train
from vtool.contents import read_small_json
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import SharedFindings
from vtool.training.checkpoint import step_of
from vtool.training.own_folder import write_atomically
from vtool.training.run_folder import RunFolder
from vtool.training.schedule import learning_rate
from vtool.training.start import Start


@dataclass(frozen=True, slots=True)
class Extension:
    """A later end of a run, and what that does to its learning rate."""

    after_step: int
    planned_steps: int
    steps: int
    planned_rate: float
    """The rate of the next step, or of the last, by the end that was planned."""
    rate: float
    """The rate of the next step, by the later end."""

    def in_words(self, optim: Optim) -> str:
        """Describe the change of the run's length and schedule, for its first lines."""
        prefix = f"extended from {self.planned_steps} to {self.steps} steps: "
        if self.rate == self.planned_rate:
            return f"{prefix}the learning rate continues at {self.rate:.3g} ({optim.schedule})"
        before = "had ended at" if self.after_step >= self.planned_steps else "would have had"
        return (
            f"{prefix}{optim.schedule} is planned anew over all of them, so the learning rate of"
            f" step {self.after_step + 1} is {self.rate:.3g}, where the run {before}"
            f" {self.planned_rate:.3g}"
        )


def plan_extension(run: Run, start: Start, steps_per_epoch: int) -> Extension | None:
    """Return how a run is extended; None for one that is not.

    Raises:
        SharedFindings: `run-folder-taken`, where the end is not later.
    """
    if start.extended is None:
        return None
    given = {name: start.extended.get(name) for name in ("steps", "epochs")}
    planned = Train.model_validate_json(json.dumps(given)).total(steps_per_epoch)
    total, step = run.train.total(steps_per_epoch), 0
    if start.checkpoint is not None:
        step = step_of(start.checkpoint)
    if total <= planned:
        message = f"checkpoint.resume is extend, but {total} steps are no more than {planned}"
        help = f"give more than {planned} steps, or put the length back and leave extend out"
        raise SharedFindings(Diagnostic("run-folder-taken", message, help, "checkpoint.resume"))
    return Extension(
        step,
        planned,
        total,
        learning_rate(run.optim, min(step + 1, planned), planned),
        learning_rate(run.optim, step + 1, total),
    )


def record_extension(folder: RunFolder, extension: Extension) -> None:
    """Set the result of the earlier end aside, and write the extension down."""
    if folder.result.exists():
        name = f"result.until-{extension.planned_steps:06d}.json"
        folder.result.rename(folder.result.with_name(name))
    own = asdict(extension)
    known = [each for each in read_extensions(folder) if each != own]
    write_atomically(folder.extensions, json.dumps([*known, own], indent=1) + "\n")


def read_extensions(folder: RunFolder) -> list[Mapping[str, Any]]:
    """Return every extension of a run, the first one first."""
    if not folder.extensions.exists():
        return []
    found: list[Mapping[str, Any]] = read_small_json(folder.extensions)
    return found
