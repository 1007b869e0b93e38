"""Trainings that are each a process of their own, forked off one that has imported everything once.

To start Python and to import torch takes two seconds, TRL eight. The process that is forked is not
watched: nothing of the watch is in a fork without facts. A fork with facts has the injected folder
on its path, and installs the watch before it runs its script. That the watch installs itself where
a process starts is for tests that start one.

usage: python -m tests.watch.forks MODULE…     imports them, then reads a job from each line
"""

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vtool.watch.folder import INJECT, WatchOptions, watched_environment

ROOT = Path(__file__).parents[2]
WATCH = "VTOOL_WATCH"


def outside(*folders: Path, **variables: str) -> dict[str, str]:
    """Return an environment for a process of its own, with some folders before this package."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(WATCH)}
    path = os.pathsep.join(map(str, (*folders, ROOT)))
    return {**own, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}


def watched(facts: Path, *folders: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a process that is watched, as `vtool watch` makes it."""
    return watched_environment(facts, WatchOptions(), outside(*folders, **variables))


class Forks:
    """Starts a process that imports some modules when it is first needed, and forks off it."""

    def __init__(self, *modules: str) -> None:
        self._command = [sys.executable, "-m", "tests.watch.forks", *modules]
        self._folder = tempfile.TemporaryDirectory(prefix="vtool-forks-")
        self._jobs = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()
        self._folder.cleanup()

    def _kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with what it has forked
            self._process.communicate()
            self._process = None

    def _ask(self, job: dict[str, Any]) -> list[int]:
        """Return the exit statuses of a job's ranks. A job that hangs is none of the next one's."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                env=outside(),
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(job) + "\n")
                self._process.stdin.flush()
            reply = self._process.stdout.readline()
            assert reply, f"{' '.join(self._command)} has ended"
            return [int(status) for status in json.loads(reply)]
        except BaseException:
            self._kill()
            raise

    def run(
        self, script: Path, *arguments: str, facts: Path | None = None, ranks: int = 1, **also: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script on ranks of its own; `also`: environment variables."""
        self._jobs += 1
        printed = Path(self._folder.name) / str(self._jobs)
        if facts is not None:
            also[f"{WATCH}_TO"] = str(facts)
        words = [str(script), *arguments]
        job = {"words": words, "ranks": ranks, "variables": also, "printed": str(printed)}
        statuses = self._ask(job)
        out, err = (
            "".join(Path(f"{printed}.{rank}.{stream}").read_text() for rank in range(ranks))
            for stream in ("out", "err")
        )
        worst = next(filter(None, statuses), 0)
        return subprocess.CompletedProcess(words, worst, out, err)

    def run_text(
        self,
        program: str,
        *arguments: str,
        facts: Path | None = None,
        ranks: int = 1,
        **also: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run the text of a program."""
        script = Path(self._folder.name) / f"program-{self._jobs}.py"
        script.write_text(program)
        return self.run(script, *arguments, facts=facts, ranks=ranks, **also)


def _serve() -> Sequence[str]:
    """Fork ranks for each job of standard input; return, in a rank, the words of its command."""
    for line in sys.stdin:
        job = json.loads(line)
        world = job["ranks"]
        agent, variables = _host_store(world) if world > 1 else (None, {})
        pids = []
        for rank in range(world):
            pids.append(os.fork())
            if not pids[-1]:
                if world > 1:
                    variables |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                _become(job, rank, variables)
                return list(job["words"])
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        if agent is not None:
            os.kill(agent, signal.SIGKILL)
            os.waitpid(agent, 0)
        print(json.dumps(statuses), flush=True)
    return []


def _host_store(world: int) -> tuple[int, dict[str, str]]:
    """Fork a process with the ranks' store, as torchrun's agent has it: (pid, its variables)."""
    from torch.distributed import TCPStore

    port, write = os.pipe()
    pid = os.fork()
    if not pid:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(write, str(store.port).encode())
        while True:
            signal.pause()
    os.close(write)
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.read(port, 9).decode()}
    os.close(port)
    variables |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    variables |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "forks"}
    return pid, variables


def _become(job: dict[str, Any], rank: int, variables: dict[str, str]) -> None:
    """Make a fork what a rank of the job is when it starts."""
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, f"{job['printed']}.{rank}.out", os.O_WRONLY | os.O_CREAT),
        (2, f"{job['printed']}.{rank}.err", os.O_WRONLY | os.O_CREAT),
    ):
        file = os.open(name, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.update({**job["variables"], **variables})
    sys.argv = job["words"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    if f"{WATCH}_TO" in os.environ:
        sys.path.insert(1, str(INJECT))
        from vtool_watch import install  # type: ignore[import-not-found]

        install.install(sys.modules["torch.optim.optimizer"])


def _run(script: str) -> None:
    """Run a script to its end. To take all modules apart would cost a fork a second more."""
    status = 0
    try:
        _names = runpy.run_path(script, run_name="__main__")  # they live as long as a script's
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        __import__(name)
    gc.freeze()  # what is forked shares it
    words = _serve()
    if words:
        _run(words[0])
