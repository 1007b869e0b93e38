"""Makes vLLM's classes with and without a stub: run by an interpreter that has vLLM.

`python stub_runs.py` prints a line of JSON: the installed version, and for each entry of that
version what its class raises without it, and what came of it with it.
"""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from vtool.loading.probe.errors import error_text
from vtool.loading.probe.sources import OwnedSource
from vtool.loading.probe.stubs import STUBS, Stub
from vtool.loading.probe.vllm_host import VllmHost
from vtool.loading.probe.vllm_tiny import TinyArchitecture

LIMIT_SECONDS = 120
Outcome = dict[str, Any]


def make_and_load(architecture: str, stubs: tuple[Stub, ...]) -> Outcome:
    """Return the stubs that were installed, and the stage and text of what was raised, if any."""
    stages = ["start"]
    with tempfile.TemporaryDirectory(prefix="vtool-") as folder:
        tiny = TinyArchitecture(architecture, Path(folder), stages.append, stubs)
        raised = None
        try:
            subject = tiny.make_subject()
            stages.append("load")
            subject.load(subject.make(), OwnedSource(subject.checkpoint))
        except Exception as error:
            raised = error_text(error, most=None)
    return {"raised": raised, "stage": stages[-1], "replaced": tiny.installer.replaced}


def in_child(architecture: str, stubs: tuple[Stub, ...]) -> Outcome:
    """Run it in a fork, since stubs change the process."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.setpgid(0, 0)
        signal.alarm(LIMIT_SECONDS)
        os.dup2(2, 1)
        with os.fdopen(writing, "w") as out:
            json.dump(make_and_load(architecture, stubs), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(process, 0)
    return dict(json.loads(text)) if text else {"raised": "the process ended", "replaced": []}


def main() -> None:
    host = VllmHost()
    version = host.prepare(several=True)["version"]
    entries = {
        number: stub
        for number, stub in enumerate(STUBS)
        if stub.framework == "vllm" and stub.version == version and stub.needed_by
    }
    started = time.monotonic()
    found: dict[int, dict[str, Outcome]] = {}
    whole: dict[str, Outcome] = {}
    for number, stub in entries.items():
        name = str(stub.needed_by)
        without = tuple(other for other in STUBS if other is not stub)
        whole[name] = whole.get(name) or in_child(name, STUBS)
        found[number] = {"without": in_child(name, without), "with": whole[name]}
    print(json.dumps({"version": version, "entries": found}))
    print(f"{time.monotonic() - started:.0f} seconds", file=sys.stderr)


if __name__ == "__main__":
    main()
