"""Processes that compute something on a CPU, over gloo, and answer with one object each. The side
that starts them imports no torch.

Not torchrun's agent, which `train` uses: nothing is to be restarted or signalled. A crash or a hang
in a library is an answer too, and what a library prints does not mix with a JSON document.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

# Seconds. A process imports torch, transformers and megatron-core in some ten of one core, and
# builds in one.
PATIENCE = 300.0
# How long a process may take to end after another one has found something, and perhaps left it
# waiting.
GRACE = 3.0
_TASK = "task.pkl"


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended without a word."""

    how: str


def run_processes(
    module: str, task: object, count: int, stops: Callable[[Any], bool], patience: float = PATIENCE
) -> list[Any]:
    """The answer of each process, by its rank; `Ended`, or None of one that was waiting for
    another, which has answered.

    Args:
        module: has `main(folder, rank)`, which reads `asked(folder)` and ends with `answer`.
        stops: whether an answer means that others may wait for this process for ever.
        patience: seconds for all of it.
    """
    # This very package, wherever it is, and nothing else of the folder that it is in, or of the one
    # that the user is in.
    start = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); import vtool;"
        f" sys.path.pop(0); from {module} import main; main(sys.argv[1], int(sys.argv[2]))"
    )
    unset = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    with tempfile.TemporaryDirectory(prefix="vtool-verify-") as name:
        folder = Path(name)
        (folder / _TASK).write_bytes(pickle.dumps(task))
        started = []
        try:
            for rank in range(count):
                with (folder / f"{rank}.log").open("wb") as log:
                    command = [sys.executable, "-P", "-c", start, str(folder), str(rank)]
                    started.append(
                        subprocess.Popen(
                            command,
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
            _told(folder, rank, process.returncode, patience if late else None)
            for rank, process in enumerate(started)
        ]


def asked(folder: Path) -> Any:
    """In a process: what it was started for."""
    return pickle.loads((folder / _TASK).read_bytes())


def answer(folder: Path, rank: int, value: object) -> NoReturn:
    """In a process:

    its answer. It ends at once: torch's own end sometimes aborts once DDP has used a process group.
    """
    temporary = folder / f"{rank}.writing"
    temporary.write_bytes(pickle.dumps(value))
    temporary.rename(folder / f"{rank}.pkl")
    sys.stderr.flush()
    os._exit(0)


def _wait(
    started: list[subprocess.Popen[bytes]], folder: Path, stops: Callable[[Any], bool], end: float
) -> bool:
    """Until all have ended, or one has found something and the others have had some time to do so.

    False: it took too long.
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


def _told(folder: Path, rank: int, code: int, patience: float | None) -> Any:
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
