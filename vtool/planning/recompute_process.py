"""The process that plans a run whose `model.gradient_checkpointing` is `auto`.

Torch's fake process group, which a plan needs, cannot exist along with a run's real one.
"""

import pickle
import sys
from pathlib import Path

from vtool.diagnostics import Diagnostic, Findings
from vtool.planning.plan import OVERHEAD, PlanQuestion, make_plan
from vtool.planning.text import remedy, verdict
from vtool.training.recompute import ChosenBlocks, Task


def main(folder_name: str) -> None:
    """Plan the run of a task's file, and write what was chosen next to it."""
    folder = Path(folder_name)
    task: Task = pickle.loads((folder / "task").read_bytes())
    result: ChosenBlocks | Findings
    try:
        reserved = OVERHEAD if task.on_device else 0
        asked = PlanQuestion(task.world, task.free, images=task.images, reserved=reserved)
        plan = make_plan(task.run, asked)
        assert plan.choice is not None, "auto was asked for"
        if plan.fits:
            choice = plan.choice
            result = ChosenBlocks(
                choice.setting, choice.blocks, choice.of, plan.device, choice.without
            )
        else:
            result = Findings(
                Diagnostic(
                    "does-not-fit",
                    f"with activations of all blocks computed again, a rank {verdict(plan)}",
                    remedy(plan),
                    "model.gradient_checkpointing",
                )
            )
    except Findings as findings:
        result = findings
    (folder / "result").write_bytes(pickle.dumps(result))
    sys.stdout.flush()
