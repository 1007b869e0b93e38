"""The blocks that compute again where `model.gradient_checkpointing` is `auto`.

`vtool plan`'s figures choose them. Its process group is torch's fake one, of which a process has
one or a real one: it is made in a process of its own, whose module is named here as text, since
`vtool.planning` is above this package.
"""

import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtool.config.schema import Fsdp2, Run
from vtool.data.audit import Ledger
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.progress import working
from vtool.engines.ranks import Ranks
from vtool.launchers import without_rank
from vtool.scratch import scratch_folder
from vtool.training.micro_batch import free_memory, size_in_words
from vtool.training.run_folder import RunFolder

_NAME = "model.gradient_checkpointing"


@dataclass(frozen=True, slots=True)
class Task:
    """The plan that is asked for."""

    run: Run
    world: int
    free: int
    """Bytes that the fullest rank's device has free."""
    on_device: bool
    """True for a GPU's or an NPU's bytes, of which the libraries of its ranks take some."""
    images: int | None


@dataclass(frozen=True, slots=True)
class ChosenBlocks:
    """The blocks that compute again, and a rank's bytes with them, and without any."""

    setting: Any
    blocks: int
    of: int
    device: int
    without: int | None


def choose_recompute(run: Run, ledger: Ledger, folder: RunFolder, ranks: Ranks) -> Run:
    """Return the run with `none`, `full` or a number, the same on all ranks; rank 0 says it.

    The model is not built yet: what is free is free for all of it.

    Raises:
        SharedFindings: `does-not-fit`, `not-planned`.
    """
    if run.model.gradient_checkpointing != "auto":
        return run
    free = min(own for (own,) in ranks.all_gather([free_memory(ranks)]))
    chosen = ranks.on_rank_zero(lambda: _choose(run, ledger, folder, ranks, int(free)))
    if ranks.rank == 0:
        print(chosen_in_words(chosen, int(free)), flush=True)
    model = run.model.model_copy(update={"gradient_checkpointing": chosen.setting})
    return run.model_copy(update={"model": model})


def chosen_in_words(chosen: ChosenBlocks, free: int) -> str:
    """Describe the chosen recomputation, and the figures behind it."""
    if chosen.without is None:
        return f"{_NAME}: full (auto): how much memory is free cannot be read here"
    line = (
        f"{_NAME}: {chosen.setting} (auto): {chosen.blocks} of {chosen.of} blocks compute again,"
        f" for {size_in_words(chosen.device)} a rank, of {size_in_words(free)} that are free"
    )
    return line + (f"; {size_in_words(chosen.without)} with none" if chosen.blocks else "")


def _choose(run: Run, ledger: Ledger, folder: RunFolder, ranks: Ranks, free: int) -> ChosenBlocks:
    if not free:
        return ChosenBlocks("full", 0, 0, 0, None)
    # the model's own config, wherever its weights begin
    of_folder = {"path": str(folder.processor), "init": "pretrained", "size": None}
    update: dict[str, Any] = {"model": run.model.model_copy(update=of_folder)}
    on_device = ranks.device.type != "cpu"
    if not on_device:
        update["device"] = run.device.model_copy(update={"kind": "cpu"})
        if isinstance(run.engine, Fsdp2):  # there is nowhere to offload to
            update["engine"] = run.engine.model_copy(update={"cpu_offload": False})
    # rows are as long as the longest one: how full a packed row can be is the plan's to say
    update["data"] = run.data.model_copy(update={"max_length": max(2, *ledger.lengths)})
    return _plan(
        Task(
            run.model_copy(update=update),
            ranks.world,
            free,
            on_device,
            None if ledger.images + ledger.videos else 0,
        )
    )


def _plan(task: Task) -> ChosenBlocks:
    start = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); import vtool;"
        " sys.path.pop(0); from vtool.planning.recompute_process import main; main(sys.argv[1])"
    )
    with scratch_folder() as scratch, working(f"planning steps, for {_NAME}=auto"):
        (scratch / "task").write_bytes(pickle.dumps(task))
        done = subprocess.run(
            [sys.executable, "-P", "-c", start, str(scratch)],
            env=without_rank() | {"CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        result = scratch / "result"
        if not result.exists():
            last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            how = f"exit status {done.returncode}{f': {last[0]}' if last else ''}"
            what, help = f"the plan for {_NAME}=auto ended with {how}", f"set {_NAME}=full"
            raise Findings(Diagnostic("not-planned", what, help, _NAME), fatal=True)
        found = pickle.loads(result.read_bytes())
    if isinstance(found, Findings):
        raise found
    assert isinstance(found, ChosenBlocks)
    return found
