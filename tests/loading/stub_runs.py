"""Makes a framework's classes with and without a stub: run by an interpreter that has it.

`python stub_runs.py FRAMEWORK` prints a line of JSON: the installed version, and for each entry of
that version what came of its class without it, and with it.
"""

import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from vtool.loading.probe.errors import error_text
from vtool.loading.probe.host import open_host
from vtool.loading.probe.sglang_host import SglangHost
from vtool.loading.probe.sources import OwnedSource
from vtool.loading.probe.stubs import STUBS, Stub
from vtool.loading.probe.subject import Subject
from vtool.loading.probe.vllm_tiny import TinyArchitecture

LIMIT_SECONDS = 120
Outcome = dict[str, Any]


def make_subject(stub: Stub, folder: Path, stages: list[str], stubs: tuple[Stub, ...]) -> Subject:
    """Make the class that needs a stub, by the table that is given."""
    if stub.framework == "vllm":
        return TinyArchitecture(stub.needed_by, folder, stages.append, stubs).make_subject()
    return SglangHost().make_subject(stub.needed_by, folder, stages.append, stubs)


def make_and_load(stub: Stub, stubs: tuple[Stub, ...]) -> Outcome:
    """Return the stubs that were installed, and the stage and text of what was raised, if any.

    Exceptions that no entry knows are noted by a last entry, which replaces nothing: SGLang's host
    goes on to another way to make the class, and says less of them.
    """
    stages, installed, unknown = ["start"], list[str](), list[str]()

    def install(entry: Stub, *given: Any) -> None:
        entry.install(*given)
        installed.append(entry.replaces.format(*given[2 if entry.writes_files else 0 :]))

    noted = (
        *(replace(entry, install=partial(install, entry)) for entry in stubs),
        replace(stub, replaces="{0}", pattern="^(.*)$", install=unknown.append, writes_files=False),
    )
    raised = None
    with tempfile.TemporaryDirectory(prefix="vtool-") as folder:
        try:
            subject = make_subject(stub, Path(folder), stages, noted)
            stages.append("load")
            subject.load(subject.make(), OwnedSource(subject.checkpoint))
        except Exception as error:
            raised = error_text(error, most=None)
    return {"raised": raised, "unknown": unknown, "stage": stages[-1], "installed": installed}


def in_child(stub: Stub, stubs: tuple[Stub, ...]) -> Outcome:
    """Run it in a fork, since stubs change the process."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.setpgid(0, 0)
        signal.alarm(LIMIT_SECONDS)
        os.dup2(2, 1)
        with os.fdopen(writing, "w") as out:
            json.dump(make_and_load(stub, stubs), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(process, 0)
    ended = {"raised": "the process ended", "unknown": [], "stage": "", "installed": []}
    return dict(json.loads(text)) if text else ended


def main(framework: str) -> None:
    version = open_host(framework).prepare(several=True)["version"]
    entries = {
        number: stub
        for number, stub in enumerate(STUBS)
        if (stub.framework, stub.version) == (framework, version)
    }
    started = time.monotonic()
    found: dict[int, dict[str, Outcome]] = {}
    whole: dict[str, Outcome] = {}
    for number, stub in entries.items():
        name = stub.needed_by
        without = tuple(other for other in STUBS if other is not stub)
        whole[name] = whole.get(name) or in_child(stub, STUBS)
        found[number] = {"without": in_child(stub, without), "with": whole[name]}
    print(json.dumps({"version": version, "entries": found}))
    print(f"{time.monotonic() - started:.0f} seconds", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
