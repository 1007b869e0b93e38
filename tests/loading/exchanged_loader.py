"""Compares classes with their twins, with a loader that exchanges two parts of names.

Runs in the interpreter of the framework: HOST, then for each class `NAME` or `NAME ONE OTHER`. For
each a line of JSON: what was measured, or `not_run`.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vtool.loading.probe.errors import NotRun
from vtool.loading.probe.facts import facts_line
from vtool.loading.probe.host import Host, open_host
from vtool.loading.probe.subject import NamedTensor


def compare(host: Host, name: str, one: str = "", other: str = "") -> str:
    """Return the facts of a class, whose loader takes each name with one part for the other."""
    with tempfile.TemporaryDirectory() as folder:
        subject = host.make_subject(name, Path(folder), lambda stage: None)
        model_class = type(subject.make())
        own, swap = model_class.load_weights, {one: other, other: one} if one else {}

        def exchanged(self: Any, weights: Iterable[NamedTensor]) -> object:
            def names() -> Iterable[NamedTensor]:
                for loaded, tensor in weights:
                    part = next((each for each in swap if each in loaded), "")
                    yield loaded.replace(part, swap[part]) if part else loaded, tensor

            return own(self, names())

        model_class.load_weights = exchanged
        assert subject.computed is not None
        try:
            return facts_line(subject.computed(subject))
        except NotRun as why:
            return json.dumps({"not_run": str(why)})


def main() -> None:
    """Print the line of each class, from a process of its own."""
    host = open_host(sys.argv[1])
    host.prepare(False)
    for asked in sys.argv[2:]:
        if os.fork():
            os.wait()
        else:
            print("FACTS", compare(host, *asked.split()), flush=True)
            os._exit(0)


if __name__ == "__main__":
    main()
