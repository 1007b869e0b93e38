"""Train a class twice, each time in a process of its own, and read what was watched."""

import ast
import atexit
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from timemachine.sweep import scan
from timemachine.sweep.results import Trained
from vtool.loading.probe.errors import error_text

MICRO_BATCHES = 4
SECONDS = 300
"""After so many, a training is ended."""
QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "WANDB_DISABLED": "true",
}
"""Variables of the sweep's process, which are to be there before torch is imported."""
_HERE = Path(__file__).parent


class Sweep:
    """The installed transformers, imported once: each training is forked from here."""

    def __init__(self) -> None:
        import transformers

        import timemachine.sweep.train  # noqa: F401

        self.package = Path(transformers.__file__).parent
        self.versions: Mapping[str, str] = {
            name: importlib.metadata.version(name) for name in ("transformers", "torch")
        }
        parts = [*sorted(self.versions.items()), sys.version]
        watch = sorted((_HERE.parents[1] / "vtool/watch").rglob("*.py"))
        files = [*(_HERE / f"{name}.py" for name in ("train", "run")), *watch]
        parts += [ast.dump(ast.parse(file.read_text("utf-8"))) for file in files]
        self.digest = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
        self.candidates = scan.candidates(self.package)

    def has(self, name: str) -> bool:
        """Return whether transformers has a class of this name."""
        from vtool.loading.probe.twin import known

        return known(name)

    def still_holds(self, kept: Mapping[str, Any]) -> dict[str, Trained]:
        """Return the earlier results that were had with this code and these releases."""
        return dict(kept["classes"]) if kept["digest"] == self.digest else {}

    def run(self, name: str) -> Trained:
        """Train a class with one micro-batch, and under the watch with four."""
        if not self.has(name):
            return Trained("not-run", "transformers does not export it: it is a part of a model")
        with tempfile.TemporaryDirectory(prefix="sweep-") as scratch:
            norms = []
            for micro_batches in (1, MICRO_BATCHES):
                watched = micro_batches > 1
                ended = _forked(name, micro_batches, Path(scratch), watched)
                if isinstance(ended, Trained):
                    return ended
                norms.append(ended)
            document = _read(Path(scratch) / "facts")
        if not all(norms):
            return Trained("raised", "no parameter has a gradient")
        results = document["results"]  # one for each model that was watched
        findings = [one for result in results for one in result["findings"]]
        states = {result["checks"].get("gradient-scaled", "not-run") for result in results}
        return Trained(
            "ran",
            times=round(norms[1] / norms[0], 4),
            rules=tuple(sorted({one["rule"] for one in findings if one["severity"] != "note"})),
            read=states != {"not-run"},
        )


def _forked(name: str, micro_batches: int, folder: Path, watched: bool) -> float | Trained:
    """Return the norm that a child has found, or how it ended without one."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_train, args=(name, micro_batches, folder, watched, there))
    child.start()
    there.close()
    answer = None
    if here.poll(SECONDS):
        try:
            answer = here.recv()
        except EOFError:
            child.join()
            return Trained("crashed", f"its process ended with {child.exitcode}")
    child.join(SECONDS if answer is not None else 0)
    if child.is_alive():
        child.kill()
        child.join()
        return Trained("hung", f"more than {SECONDS} s")
    return Trained("raised", answer) if isinstance(answer, str) else float(answer or 0)


def _train(name: str, micro_batches: int, folder: Path, watched: bool, to: Connection) -> None:
    """Train in a child, and send the norm, or the text of what was raised."""
    from timemachine.sweep.train import train

    os.chdir(folder)
    atexit._clear()  # those of the parent; a forked child runs none by itself
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
        try:
            if watched:
                import vtool.watch

                vtool.watch.start(str(folder / "facts"))
            answer: float | str | None = train(name, micro_batches)
        except Exception as error:
            answer = error_text(error)
        atexit._run_exitfuncs()  # the watch ends its facts
        to.send(answer or 0.0)


def _read(facts: Path) -> dict[str, Any]:
    """Conclude from the facts of a watched training, by the command."""
    words = [sys.executable, "-m", "vtool", "watch", "--read", str(facts), "--format", "json"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(ended.stdout))
    except ValueError:
        raise RuntimeError(f"vtool watch --read: {ended.stderr[-300:]}") from None
