"""Answers a request: imports the framework once, and has a pool audit its subjects."""

import gc
import importlib
import os
import signal
import sys
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path

from .changed import changed_subjects
from .errors import NotRun
from .facts import Done, Event, Ready, Unusable, facts_line, read_probe_request
from .pool import Pool, die_with_parent


def answer_request(request_file: str) -> int:
    """Answer the request, and return the exit status.

    A line of JSON for the start, for each subject, and for the end goes through the descriptor
    that the request names.
    """
    request = read_probe_request(Path(request_file).read_text())
    out = os.fdopen(request.descriptor, "w", buffering=1)

    def say(event: Event) -> None:
        out.write(facts_line(event) + "\n")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    die_with_parent(signal.SIGTERM)
    try:
        import torch
    except ImportError as error:
        say(Unusable(f"this interpreter cannot import torch: {error}"))
        return 0
    torch.set_num_threads(1)
    importlib.import_module(".audit", __package__)  # before the forks, that it is imported once
    from .host import open_host

    asked = request.subjects
    host = open_host(request.host, request.checkpoint)
    started = time.monotonic()
    try:
        versions = host.prepare(several=asked is None or len(asked) > request.jobs)
        known = tuple(host.list_subjects())
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        cannot = f"cannot import {request.host}: {type(error).__name__}: {text}"
        say(Unusable(f"this interpreter {cannot}"))
        return 0
    if asked is None:
        asked = tuple(name for name in known if fnmatchcase(name, request.match))
        if asked and request.changed_since is not None:
            try:
                asked = changed_subjects(
                    {name: host.module_of(name) for name in asked},
                    host.package(),
                    request.changed_since,
                )
            except NotRun as why:
                say(Unusable(str(why), asks_too_much=True))
                return 0
    gc.collect()
    # what is imported is never looked through again, and stays shared with the children
    gc.freeze()
    seconds = time.monotonic() - started
    say(Ready(**versions, torch=torch.__version__, seconds=seconds, known=known, subjects=asked))
    with tempfile.TemporaryDirectory(prefix="vtool-load-") as scratch:
        Pool(host, request, Path(scratch), say).run(asked)
    say(Done())
    return 0
