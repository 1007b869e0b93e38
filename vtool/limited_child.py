"""A process that answers requests within limits that the kernel keeps, whatever code it calls.

The side that asks imports this file. The process runs it as a script, with a file that has
`work(request)`: it imports no more of vtool than that file does. Requests are read from standard
input, answers written to standard output: each a length of four bytes and its content.
"""

import marshal
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any
from weakref import finalize

MEMORY = 2**30
"""Bytes that the process may grow by."""
_FINEST = 0.01


class TooCostly(Exception):
    """Too much time or memory is taken by what was asked."""


class LimitedChild:
    """The process that answers for this one, started at the first request."""

    def __init__(self, answers: str, environment: Mapping[str, str] | None = None) -> None:
        self.command = [sys.executable, "-P", __file__, answers]
        self.environment = environment
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a request; None where the kernel has ended it for its time.

        A process that has ended otherwise, as by somebody's kill, is started again, once.

        Args:
            request: has `seconds`, the processor time that it may take.

        Raises:
            TooCostly: it takes too much memory, or the process ends each time.
        """
        request = {**request, "memory": MEMORY}
        try:
            content = marshal.dumps(request)
        except ValueError:  # an object that no template is to see
            content = marshal.dumps(_plain(request))
        with self.lock:
            for _ in range(2):
                process = self.start()
                try:
                    reply = _exchange(process, content)
                except BaseException:  # a Ctrl-C: its answer must not be taken for the next one's
                    self.process = None
                    process.kill()
                    _end(process, os.getpid())
                    raise
                if reply is not None:
                    answer: dict[str, Any] = marshal.loads(reply)
                    if "costly" in answer:
                        raise TooCostly(answer["costly"])
                    return answer
                self.process = None
                _end(process, os.getpid())
                if process.returncode == -signal.SIGPROF:
                    return None
        raise TooCostly("its process ends each time")

    def start(self) -> "subprocess.Popen[bytes]":
        """Return the process, which is started where there is none."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is not for it
            )
            finalize(self, _end, self.process, os.getpid())
        return self.process


def _exchange(process: "subprocess.Popen[bytes]", content: bytes) -> bytes | None:
    """Send a request, and return the whole reply; None where the process has ended before it."""
    asked, answered = process.stdin, process.stdout
    assert asked is not None, "it is a pipe"
    assert answered is not None, "it is a pipe"
    with suppress(BrokenPipeError):
        asked.write(struct.pack("=I", len(content)) + content)
        asked.flush()
    if len(head := answered.read(4)) < 4:
        return None
    (size,) = struct.unpack("=I", head)
    reply = answered.read(size)
    return reply if len(reply) == size else None


def _end(process: "subprocess.Popen[bytes]", starter: int) -> None:
    """Close the pipes of a process, which ends it; one that was forked off closes its own ends."""
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            pipe.close()  # type: ignore[union-attr]
    if os.getpid() == starter:
        process.wait()


def _plain(value: Any) -> Any:
    """Return a value of which only what JSON has is left; of other objects, their type's name."""
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or type(value) in (str, int, float, bool) else f"<{type(value)}>"


def limited_child(answers: str, *, bare: bool = False) -> LimitedChild:
    """Return the process that answers for this one.

    Args:
        answers: the file that has `work(request)`.
        bare: whether it has no environment but what Python itself needs.
    """
    kept = {name: os.environ[name] for name in _PYTHONS if name in os.environ}
    made = LimitedChild(answers, kept if bare else None)
    return _children(os.getpid()).setdefault(answers, made)


@lru_cache(maxsize=1)
def _children(process: int) -> dict[str, LimitedChild]:
    """Return the processes that answer for a process: one that was forked off has others."""
    return {}


_PYTHONS = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")


def _serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests until there are none.

    The kernel ends this process once it has used the request's seconds of processor time, within a
    function of C too, which no handler of Python's would end.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    limited = False
    asked, answered = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints is no answer
    while head := asked.read(4):
        request = marshal.loads(asked.read(*struct.unpack("=I", head)))
        if not limited:
            _limit_memory(request["memory"])
            limited = True
        signal.setitimer(signal.ITIMER_PROF, max(_FINEST, request["seconds"]))
        try:
            content = marshal.dumps(answer(request))
        except MemoryError:
            much = f"it takes more than {request['memory'] / 2**30:g} GiB of memory"
            content = marshal.dumps({"costly": much})
        signal.setitimer(signal.ITIMER_PROF, 0)
        answered.write(struct.pack("=I", len(content)) + content)
        answered.flush()


def _limit_memory(growth: int) -> None:
    with open("/proc/self/statm", "rb") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + growth
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    _spec = spec_from_file_location("answers", sys.argv[1])
    assert _spec is not None
    assert _spec.loader is not None
    _answers = module_from_spec(_spec)
    _spec.loader.exec_module(_answers)
    _serve(_answers.work)
