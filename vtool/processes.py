"""Processes that compute something on the CPU, over gloo, and end with one result each.

The side that starts them imports no torch. torchrun's agent, which `train` uses, is not used here:
nothing is to be restarted or signalled. A crash or a hang in a library is a result too, and what a
library prints does not mix with a JSON document.
"""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from vtool.launchers import without_rank
from vtool.scratch import scratch_folder

MOST_PROCESSES = 2
"""The most that are started."""
MOST_SECONDS = 300.0
"""Seconds for all of it.

Importing torch, transformers and megatron-core takes some ten seconds of one core, building one.
"""
# Seconds that a process has to end after another one has found something, and perhaps left it
# waiting.
GRACE = 3.0
_TASK = "task.pkl"


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended without a result."""

    how: str


def run_processes(
    module: str,
    task: object,
    count: int,
    stops: Callable[[Any], bool],
    patience: float = MOST_SECONDS,
) -> list[Any]:
    """Start processes, and return the result of each, by rank.

    Args:
        module: has `work(task, folder, rank)`, which returns a process's result. The folder is its
            own.
        task: what they are to do; it is pickled.
        stops: whether a result means that the others may wait for this process for ever.
        patience: seconds for all of it.

    Returns:
        For a process without a result, `Ended`; or None where it was killed because another one
        has a result.
    """
    # This very package, wherever it is, and nothing else of the folder that it is in, or of the one
    # that the user is in.
    start = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); import vtool;"
        f" sys.path.pop(0); from {__name__} import run_worker;"
        f" run_worker({module!r}, sys.argv[1], int(sys.argv[2]))"
    )
    environment = without_rank()
    with scratch_folder() as folder:
        (folder / _TASK).write_bytes(pickle.dumps(task))
        started = []
        try:
            for rank in range(count):
                with (folder / f"{rank}.log").open("wb") as log:
                    started.append(
                        subprocess.Popen(
                            [sys.executable, "-P", "-c", start, str(folder), str(rank)],
                            env=environment,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=log,
                        )
                    )
            late = not _wait(started, folder, stops, time.monotonic() + patience)
        finally:
            for process in started:
                process.kill()
                process.wait()
        return [
            _result(folder, rank, process.returncode, patience if late else None)
            for rank, process in enumerate(started)
        ]


def run_worker(module: str, folder_name: str, rank: int) -> NoReturn:
    """Do, in a process, what it was started for, write its result, and end it at once.

    torch's own end sometimes aborts once DDP has used a process group.
    """
    folder = Path(folder_name)
    own = folder / f"rank{rank}"
    own.mkdir()
    task = pickle.loads((folder / _TASK).read_bytes())
    result = import_module(module).work(task, own, rank)
    temporary = folder / f"{rank}.writing"
    temporary.write_bytes(pickle.dumps(result))
    temporary.rename(folder / f"{rank}.pkl")
    sys.stderr.flush()
    os._exit(0)


def join_ranks(folder: Path, rank: int, world: int, patience: float = MOST_SECONDS) -> None:
    """Join, in a process, the gloo group of all processes that were started with it.

    Args:
        folder: the process's own.
    """
    from datetime import timedelta

    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder.parent}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=patience),
    )


def _wait(
    started: list[subprocess.Popen[bytes]], folder: Path, stops: Callable[[Any], bool], end: float
) -> bool:
    """Wait until all have ended, or until `GRACE` seconds after one has found something.

    Returns:
        False where it took longer than until `end`.
    """
    found = False
    while any(process.poll() is None for process in started) and time.monotonic() < end:
        time.sleep(0.05)
        stopped = [rank for rank, process in enumerate(started) if process.poll() is not None]
        if not found and any(_found_something(folder, rank, stops) for rank in stopped):
            found, end = True, min(end, time.monotonic() + GRACE)
    return found or all(process.poll() is not None for process in started)


def _found_something(folder: Path, rank: int, stops: Callable[[Any], bool]) -> bool:
    file = folder / f"{rank}.pkl"
    return not file.exists() or stops(pickle.loads(file.read_bytes()))


def _result(folder: Path, rank: int, code: int, patience: float | None) -> Any:
    file, log = folder / f"{rank}.pkl", folder / f"{rank}.log"
    if file.exists():
        return pickle.loads(file.read_bytes())
    if patience is not None and code == -signal.SIGKILL:
        return Ended(f"had not ended after {patience:.0f} s")
    others = [other for other in folder.glob("*.pkl") if other.name != _TASK]
    if code == -signal.SIGKILL and others:
        return None
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return Ended(f"ended with {how}{f': {last[0]}' if last else ''}")
