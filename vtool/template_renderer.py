"""Limits of a chat template, which is a program that comes with a model's folder.

It is rendered in a process of its own (`template_child`), in Jinja's sandbox: what it may touch is
limited there, and its time and memory by the kernel, whatever it calls.
"""

import builtins
import marshal
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from signal import SIGPROF
from typing import Any
from weakref import finalize

import jinja2.exceptions

_SECONDS = 5.0
"""Processor time that a template may take: a thousand times what one does."""
SECONDS_OF_ROW = 30.0
"""Processor time of all renderings for one row, of which each answer takes two."""
LARGEST_VALUE = 64 * 2**20
"""Characters that a template may write."""
MEMORY = 2**30
"""Bytes that the process may grow by."""
_CHILD = Path(__file__).with_name("template_child.py")


class TooCostly(Exception):
    """A template takes too much time or memory."""


class RowTime:
    """The processor time of what is rendered for one row."""

    seconds = 0.0


class LimitedRendering:
    """A template with limits; its `render` is Jinja's."""

    def __init__(self, template: str, row: RowTime | None = None) -> None:
        self.template, self.row = template, row or RowTime()
        self.unknown: list[str] = []
        """Names that were to be written, and that no argument gave."""

    def render(self, **values: Any) -> str:
        """Return the text that the template writes of a chat; raise as `render_chats`."""
        return self.render_chats([values])[0]

    def render_chats(self, chats: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the texts that the template writes of some chats, by one request.

        Raises:
            TooCostly: it is stopped.
            Exception: what the template raises.
        """
        left = SECONDS_OF_ROW - self.row.seconds
        request = {
            "template": self.template,
            "chats": chats,
            "day": today().isoformat(),
            "seconds": min(_SECONDS, left),
            "most": LARGEST_VALUE,
            "memory": MEMORY,
        }
        if left > 0 and (answer := _renderer(os.getpid()).ask(request)) is not None:
            if "costly" in answer:
                raise TooCostly(answer["costly"])
            if "raised" in answer:
                raise _raised(answer["raised"], answer["arguments"])
            self.row.seconds += answer["seconds"]
            self.unknown = answer["unknown"]
            texts: list[str] = answer["texts"]
            return texts
        if left < _SECONDS:
            raise TooCostly(
                "it is rendered for each answer, and takes more than"
                f" {SECONDS_OF_ROW:g} seconds in all"
            )
        raise TooCostly(f"it runs for more than {_SECONDS:g} seconds")


def _raised(name: str, arguments: list[Any]) -> Exception:
    """Return the exception that a template has raised in the other process."""
    kind = getattr(jinja2.exceptions, name, None) or getattr(builtins, name, None)
    try:
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(*arguments)
    except TypeError:  # one that is made of something else
        pass
    return RuntimeError(f"{name}: {arguments[0]}")


class _Renderer:
    """The process that renders for this one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a request; None where the kernel has ended it for its time.

        A process that has ended otherwise, as by somebody's kill, is started again, once.
        """
        try:
            content = marshal.dumps(request)
        except ValueError:  # an object that no template is to see
            content = marshal.dumps(_plain(request))
        with self.lock:
            for _ in range(2):
                process = self._started()
                try:
                    reply = _exchange(process, content)
                except BaseException:  # a Ctrl-C: its answer must not be taken for the next one's
                    self.process = None
                    process.kill()
                    _end(process, os.getpid())
                    raise
                if reply is not None:
                    answer: dict[str, Any] = marshal.loads(reply)
                    return answer
                self.process = None
                _end(process, os.getpid())
                if process.returncode == -SIGPROF:
                    return None
        raise TooCostly("the process that renders it ends each time")

    def _started(self) -> "subprocess.Popen[bytes]":
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD)],
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


@lru_cache(maxsize=1)
def _renderer(process: int) -> _Renderer:
    """Return the renderer of a process: one that was forked off has another."""
    return _Renderer()


def _plain(value: Any) -> Any:
    """Return a value of which only what JSON has is left; of other objects, their type's name."""
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or type(value) in (str, int, float, bool) else f"<{type(value)}>"


@cache
def today() -> datetime:
    """Return the day on which this process has first asked, which templates are given.

    A run may last longer than its first day, and a row stays what was audited.
    """
    return datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
