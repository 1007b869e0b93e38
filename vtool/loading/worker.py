"""Starts the probe in the subject's interpreter, and reads its events."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from vtool.diagnostics import Diagnostic, Findings
from vtool.loading.probe.facts import Done, Event, ProbeRequest, Unusable, facts_line, read_event
from vtool.scratch import scratch_folder

_PROBE = Path(__file__).parent / "probe"
VLLM_PYTHON = Path(".vllm-venv/bin/python")
LONGEST_FOLDER = 107 - len("/123e4567-e89b-12d3-a456-426614174000")
"""Characters of a folder in which vLLM can put a socket under a name of that length."""


def framework_interpreter(python: str | None, host: str) -> str:
    """Return the interpreter for a framework.

    The one asked for; for vLLM and SGLang, where this one has none, what `make vllm-env` has built;
    else this one.
    """
    elsewhere = host in ("vllm", "sglang") and find_spec(host) is None and VLLM_PYTHON.exists()
    return python or (str(VLLM_PYTHON) if elsewhere else sys.executable)


def probe_events(python: str, request: ProbeRequest) -> Iterator[Event]:
    """Run the probe, and yield its events. It is stopped when the caller goes away.

    Raises:
        Findings: `unusable-interpreter`, where it cannot be started, ends before it is done, or is
            of another version of vtool.
    """
    reading, writing = os.pipe()
    with scratch_folder() as folder, os.fdopen(reading) as lines, open(folder / "log", "w+") as log:
        request_file = folder / "request.json"
        request_file.write_text(facts_line(replace(request, descriptor=writing)))
        try:
            process = subprocess.Popen(
                [python, str(_PROBE), str(request_file)],
                pass_fds=[writing],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(str(folder)),
                start_new_session=True,
            )
        except OSError as error:
            raise unusable(python, f"it cannot be started: {error.strerror}") from error
        finally:
            os.close(writing)
        try:
            last: Event | None = None
            for line in lines:
                try:
                    last = read_event(line)
                except ValueError as error:
                    raise unusable(python, str(error)) from error
                yield last
            if not isinstance(last, Done | Unusable):
                status = process.wait()
                log.seek(0)
                printed = log.read().strip().splitlines() or ["it said nothing"]
                raise unusable(python, f"it ended with status {status}: {printed[-1]}")
        finally:
            process.terminate()  # it ends its own children
            process.wait()


def _environment(folder: str) -> dict[str, str]:
    """Return the probe's environment.

    One thread a subject, which waits without spinning; no hub; none of this interpreter's own
    packages.

    Args:
        folder: for temporary files, so that the sockets and caches of frameworks go away with it.
    """
    base = {"VLLM_RPC_BASE_PATH": tempfile.gettempdir()} if len(folder) > LONGEST_FOLDER else {}
    return {
        **base,
        **{name: os.environ[name] for name in os.environ.keys() - {"PYTHONPATH", "PYTHONHOME"}},
        "TMPDIR": folder,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def unusable(python: str, reason: str) -> Findings:
    """Return the finding of an interpreter in which nothing can be checked."""
    return Findings(Diagnostic("unusable-interpreter", f"{python}: {reason}"), fatal=True)
