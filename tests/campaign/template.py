"""Runs that are forked from this process, which has imported everything once.

A start of Python and torch takes seven seconds, a fork none: that is what makes a thousand kills
cheap. What is killed is a process of its own, with its own files, locks and ranks. Two ranks are
started as an outer torchrun starts them, and ended as it ends them: when one has failed, the others
get SIGTERM, then SIGKILL.
"""

import atexit
import contextlib
import importlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE = 600.0
"""Seconds after which a run counts as hanging; a whole one takes two to ten on a free core."""
GRACE = 20.0
"""Seconds that the other ranks have after SIGTERM, once one has failed."""
Prepare = Callable[[int], object]
"""A function that a child calls with its rank before its command; its result runs at the end."""


@dataclass
class Forked:
    """A command in processes of its own: one, or one a rank."""

    pids: list[int]
    log: Path
    began: float = field(default_factory=time.monotonic)
    status: dict[int, int] = field(default_factory=dict)
    """By rank: the exit status, negative for a signal, of those that have ended."""
    hung: bool = False

    def poll(self) -> bool:
        """Return whether all have ended."""
        for rank, pid in enumerate(self.pids):
            if rank not in self.status:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self.status[rank] = os.waitstatus_to_exitcode(status)
        return len(self.status) == len(self.pids)

    def send(self, number: int, ranks: Sequence[int] | None = None) -> None:
        for rank in range(len(self.pids)) if ranks is None else ranks:
            if rank not in self.status:
                os.kill(self.pids[rank], number)

    def wait_until(self, moment: float) -> bool:
        """Wait for the end, at most until a moment; return whether all have ended before it."""
        while not self.poll():
            if time.monotonic() >= moment:
                return False
            time.sleep(0.002)
        return True

    def wait(self) -> "Forked":
        """Wait for the end of all ranks, as torchrun does."""
        deadline, asked = self.began + PATIENCE, 0.0
        while not self.poll():
            now = time.monotonic()
            if any(self.status.values()) and not asked:
                # torchrun looks every so often, and a rank that lost its peer may say so first
                time.sleep(0.2)
                self.send(signal.SIGTERM)
                asked = now
            if now > deadline or (asked and now > asked + GRACE):
                self.hung = now > deadline
                self.send(signal.SIGKILL)
            time.sleep(0.005)
        return self

    @property
    def printed(self) -> str:
        """Return the output of all ranks: empty where they were killed before they could print."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def fork(
    arguments: Sequence[str],
    folder: Path,
    *,
    world: int = 1,
    prepare: Prepare | None = None,
    log: str = "printed",
) -> Forked:
    """Start `vtool ARGUMENTS` in a folder, in a forked process for each rank."""
    out = folder / log
    port = _free_port() if world > 1 else 0
    sys.stdout.flush()
    sys.stderr.flush()
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _child(arguments, folder, out, rank, world, port, prepare)
        pids.append(pid)
    return Forked(pids, out)


def run(arguments: Sequence[str], folder: Path, *, world: int = 1, log: str = "printed") -> Forked:
    return fork(arguments, folder, world=world, log=log).wait()


def _child(
    arguments: Sequence[str],
    folder: Path,
    out: Path,
    rank: int,
    world: int,
    port: int,
    prepare: Prepare | None,
) -> None:
    """Be `python -m vtool`, to the end of the process."""
    code: object = 70
    try:
        descriptor = os.open(out, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if world > 1:
            os.environ |= {
                "TORCHELASTIC_RUN_ID": "campaign",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        sys.argv = ["vtool", *arguments]
        done = prepare(rank) if prepare else None
        from vtool.cli.app import main

        try:
            main()
        except SystemExit as end:
            code = end.code
        if callable(done):
            done()
        threading._shutdown()  # type: ignore[attr-defined]  # as the end of a Python does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else 1 if code else 0)


def import_all_of(arguments: Sequence[str], folder: Path) -> None:
    """Run a command once in a child, and import here what it had imported at its end."""
    names = folder / "modules.json"

    def prepare(rank: int) -> object:
        return lambda: names.write_text(json.dumps(sorted(sys.modules)))

    done = fork(arguments, folder, prepare=prepare).wait()
    if done.status != {0: 0}:
        raise SystemExit(f"a run without faults failed: {done.status}\n{done.printed[-3000:]}")
    for name in json.loads(names.read_text()):
        if name not in sys.modules and name != "__main__":
            with contextlib.suppress(Exception), contextlib.redirect_stdout(None):
                importlib.import_module(name)


def traceback_in(printed: str) -> str | None:
    """Return the name of the exception whose traceback was printed last, if any was."""
    if "Traceback (most recent call last)" not in printed:
        return None
    return (re.findall(r"^([A-Za-z_.]+)(?::.*)?$", printed, re.M) or ["?"])[-1]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
