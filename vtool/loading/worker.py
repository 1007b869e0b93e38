"""Starts the probe in the subject's interpreter, and reads what it says."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic, Findings

PROBE = Path(__file__).parent / "probe"
VLLM_PYTHON = Path(".vllm-venv/bin/python")
LONGEST_FOLDER = 107 - len("/123e4567-e89b-12d3-a456-426614174000")
"""Characters of a folder in which vLLM can put a socket under a name of that length."""
Event = Mapping[str, Any]


def interpreter(asked: str | None, host: str) -> str:
    """The interpreter for a framework:

    the one asked for; for vLLM and SGLang what `make vllm-env` has built; else this one.
    """
    if asked:
        return asked
    return (
        str(VLLM_PYTHON) if host in ("vllm", "sglang") and VLLM_PYTHON.exists() else sys.executable
    )


def probe_events(python: str, request: Mapping[str, Any]) -> Iterator[Event]:
    """Run the probe; what it says, event by event. It is stopped when the caller goes away.

    Raises:
        Findings: `unusable-interpreter`, where it cannot be started, or ends before it has said
            that it is done.
    """
    reading, writing = os.pipe()
    # what was killed may still end
    scratch = tempfile.TemporaryDirectory(prefix="vtool-", ignore_cleanup_errors=True)
    with scratch as folder, os.fdopen(reading) as lines, open(Path(folder) / "log", "w+") as log:
        asked = Path(folder) / "request.json"
        asked.write_text(json.dumps({**request, "descriptor": writing}))
        try:
            process = subprocess.Popen(
                [python, str(PROBE), str(asked)],
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
            last: Event = {}
            for line in lines:
                last = json.loads(line)
                yield last
            if last.get("event") not in ("done", "unusable"):
                process.wait()
                log.seek(0)
                said = log.read().strip().splitlines()
                raise _unusable(
                    python,
                    f"it ended with status {process.returncode}:"
                    f" {said[-1] if said else 'it said nothing'}",
                )


@contextmanager
def _stopped_at_the_end(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # it ends its own children
        process.wait()


def _environment(folder: str) -> dict[str, str]:
    """One thread a subject, which waits without spinning; no hub; nothing of this interpreter's own
    packages.

    Args:
        folder: what frameworks leave behind in temporary folders, as sockets and caches, goes away
            with it.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME")
    }
    sockets = (
        {}
        if len(folder) <= LONGEST_FOLDER
        else {"VLLM_RPC_BASE_PATH": kept.get("VLLM_RPC_BASE_PATH", tempfile.gettempdir())}
    )
    return {
        **kept,
        **sockets,
        "TMPDIR": folder,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _unusable(python: str, reason: str) -> Findings:
    return Findings(unusable(python, reason), fatal=True)


def unusable(python: str, reason: str) -> Diagnostic:
    """An interpreter in which nothing can be checked."""
    return Diagnostic("unusable-interpreter", f"{python}: {reason}")
