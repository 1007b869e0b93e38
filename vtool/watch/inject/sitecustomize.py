"""Lets a Python that imports torch's optimizers watch itself. This folder is on PYTHONPATH.

Python imports this file when it starts. It imports no torch: a finder waits for
`torch.optim.optimizer`, and steps aside once that is there. Another `sitecustomize` further down
the path is run as usual.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_AWAITED = "torch.optim.optimizer"
_LIBRARY = os.path.dirname(os.__file__)
_OF_LAUNCHERS = ("ChildFailedError", "CalledProcessError", "KeyboardInterrupt", "SystemExit")
_OLDEST = (2, 4)
"""The oldest release of torch that has what the watch calls."""


def _install(module):  # type: ignore[no-untyped-def]
    """Hook into torch's optimizers; a failure is reported, and never reaches the program."""
    try:
        release = str(sys.modules["torch.version"].__version__)
        if tuple(int(part) for part in release.split(".")[:2]) < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            return _say(f"torch {release} is older than {oldest}")
        from vtool_watch import install  # type: ignore[import-not-found]

        install.install(module)
    except Exception as error:
        _say(repr(error))


def _say(why):  # type: ignore[no-untyped-def]
    """Say why nothing will be seen of this process, here and in the folder of the facts."""
    sys.stderr.write(f"vtool watch: not installed: {why}\n")
    _write("blind", why)


def _write(kind, why):  # type: ignore[no-untyped-def]
    try:
        import json  # not before it is needed: every Python that starts runs this file

        rank = int(os.environ.get("RANK", "0"))
        fact = {"kind": kind, "step": 0, "rank": rank, "model": None, "why": why}
        folder = os.environ["VTOOL_WATCH_TO"]
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, f"rank{rank}-{os.getpid()}.jsonl")
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(fact) + "\n")
    except (OSError, ValueError):
        return


def _at_end():  # type: ignore[no-untyped-def]
    """Write the exception with which the program has ended, where that was before any step.

    A launcher's is of a process that it has started, which writes its own.
    """
    error = getattr(sys, "last_value", None)
    if error is None or sys.argv[:1] == ["-c"] or type(error).__name__ in _OF_LAUNCHERS:
        return
    installed = sys.modules.get("vtool_watch.install")
    process = installed and installed._State.process
    if process and process.steps:
        return
    place, trace = "", error.__traceback__
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        if not place or not ("site-packages" in file or file.startswith(_LIBRARY + os.sep)):
            place = f" ({_shown(file)}:{line})"
        trace = trace.tb_next
    said = "" if os.environ.get("VTOOL_WATCH_TEXT") == "0" else str(error).strip()
    text = f": {said.splitlines()[0][:300]}" if said else ""
    _write("crashed", f"{type(error).__name__}{text}{place}")


def _shown(file):  # type: ignore[no-untyped-def]
    """Return a path as seen from the folder that the program is in, where it is inside."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # it was deleted
        return file
    return file[len(here) :] if file.startswith(here) else file


class _AfterOptimizer(importlib.abc.MetaPathFinder):
    """Finds `torch.optim.optimizer` as Python would, and installs the watch after it."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Return the module's spec, with a loader that installs the watch after it."""
        if name != _AWAITED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            run(module)
            sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _AfterOptimizer)]
            _install(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _run_hidden() -> None:
    """Run the `sitecustomize` that this one hides, as if it had been found first.

    It may look for the next one itself: what is before this folder on the path has had its turn.
    """
    entries = [os.path.abspath(entry or ".") for entry in sys.path]
    behind = len(entries) - entries[::-1].index(_HERE) if _HERE in entries else 0
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path[behind:])
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[__name__] = module
        spec.loader.exec_module(module)


if os.environ.get("VTOOL_WATCH_TO"):
    atexit.register(_at_end)
    if _AWAITED in sys.modules:
        _install(sys.modules[_AWAITED])
    else:
        sys.meta_path.insert(0, _AfterOptimizer())
_run_hidden()
