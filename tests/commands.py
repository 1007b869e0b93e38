"""Run `vtool` as a user types it, inside the test's own process.

A process of its own costs five seconds of imports. Tests that need one (signals, exit statuses of
killed processes, start-up) start it themselves; `tests/cli/test_startup.py` holds that both ways
end alike.
"""

import contextlib
import gc
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import process_state
from vtool.cli.app import app


@dataclass(frozen=True, slots=True)
class Completed:
    """The output of a command that has ended, and its exit status."""

    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def run_vtool(folder: Path, *arguments: str | Path) -> Completed:
    """Run a command in a folder. What its own child processes print is in the output too."""
    before = process_state.snapshot()
    with _captured() as printed, contextlib.chdir(folder):
        try:
            status = _invoke([str(each) for each in arguments])
        finally:
            process_state.restore(before)
            gc.enable()  # `verify --fast` turns it off for a process that ends with it
    return Completed(status, *printed)


def vtool(folder: Path, *arguments: str | Path, status: int = 0) -> str:
    """Run a command in a folder, and return what it prints; it must end with `status`."""
    done = run_vtool(folder, *arguments)
    assert done.status == status, done.output
    return done.output


def _invoke(arguments: list[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["vtool", *arguments])
        patch.setattr(os, "_exit", _raise_exit)
        try:
            app(arguments, prog_name="vtool")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:  # as `vtool.cli.app.main` does
            traceback.print_exc()
            return 2
    return 0


def _raise_exit(status: int) -> None:
    raise SystemExit(status)


@contextmanager
def _captured() -> Iterator[list[str]]:
    """Send both streams of the process, and of its children, to files; then list their texts."""
    printed: list[str] = []
    streams, saved = (sys.stdout, sys.stderr), (os.dup(1), os.dup(2))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        for stream in streams:
            stream.flush()
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = (
            open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            for number in (1, 2)
        )
        try:
            yield printed
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            sys.stdout, sys.stderr = streams
            for number, old in zip((1, 2), saved, strict=True):
                os.dup2(old, number)
                os.close(old)
            for file in (out, err):
                file.seek(0)
                printed.append(file.read().decode("utf-8"))
