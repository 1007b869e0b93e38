"""Starts the probe in the subject's interpreter, and reads its events."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from vtool.diagnostics import Diagnostic, Findings
from vtool.loading.probe.facts import Done, Event, Request, Unusable, read_event, write

PROBE = Path(__file__).parent / "probe"
VLLM_PYTHON = Path(".vllm-venv/bin/python")
LONGEST_FOLDER = 107 - len("/123e4567-e89b-12d3-a456-426614174000")
"""Characters of a folder in which vLLM can put a socket under a name of that length."""


def interpreter(python: str | None, host: str) -> str:
    """Return the interpreter for a framework.

    The one asked for; for vLLM and SGLang what `make vllm-env` has built; else this one.
    """
    built = host in ("vllm", "sglang") and VLLM_PYTHON.exists()
    return python or (str(VLLM_PYTHON) if built else sys.executable)


def probe_events(python: str, request: Request) -> Iterator[Event]:
    """Run the probe, and yield its events. It is stopped when the caller goes away.

    Raises:
        Findings: `unusable-interpreter`, where it cannot be started, ends before it is done, or is
            of another version of vtool.
    """
    reading, writing = os.pipe()
    # what was killed may still end
    scratch = tempfile.TemporaryDirectory(prefix="vtool-", ignore_cleanup_errors=True)
    with scratch as folder, os.fdopen(reading) as lines, open(Path(folder) / "log", "w+") as log:
        request_file = Path(folder) / "request.json"
        request_file.write_text(write(replace(request, descriptor=writing)))
        try:
            process = subprocess.Popen(
                [python, str(PROBE), str(request_file)],
                pass_fds=[writing],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(folder),
                start_new_session=True,
            )
        except OSError as error:
            raise _unusable(python, f"it cannot be started: {error.strerror}") from error
        finally:
            os.close(writing)
        with _stopped_at_the_end(process):
            last: Event | None = None
            for line in lines:
                try:
                    last = read_event(line)
                except ValueError as error:
                    raise _unusable(python, str(error)) from error
                yield last
            if not isinstance(last, Done | Unusable):
                process.wait()
                log.seek(0)
                printed = log.read().strip().splitlines() or ["it said nothing"]
                reason = f"it ended with status {process.returncode}: {printed[-1]}"
                raise _unusable(python, reason)


@contextmanager
def _stopped_at_the_end(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # it ends its own children
        process.wait()


def _environment(folder: str) -> dict[str, str]:
    """Return the probe's environment.

    One thread a subject, which waits without spinning; no hub; none of this interpreter's own
    packages.

    Args:
        folder: for temporary files, so that the sockets and caches of frameworks go away with it.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME")
    }
    if len(folder) > LONGEST_FOLDER:
        kept.setdefault("VLLM_RPC_BASE_PATH", tempfile.gettempdir())
    return {
        **kept,
        "TMPDIR": folder,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _unusable(python: str, reason: str) -> Findings:
    return Findings(unusable(python, reason), fatal=True)


def unusable(python: str, reason: str) -> Diagnostic:
    """Return the finding of an interpreter in which nothing can be checked."""
    return Diagnostic("unusable-interpreter", f"{python}: {reason}")
