"""Writes facts: a line of JSON each, into a file of the process's own."""

from __future__ import annotations

import json
import math
import os
import platform
import socket
import sys
import time
from typing import Any

import torch

from .settings import FORMAT, WatchSettings

_ENCODE = json.JSONEncoder(allow_nan=False).encode


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and how many there are, asking torch before the environment."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, world in (
        ("RANK", "WORLD_SIZE"),
        # of a step: the script of sbatch has SLURM_NTASKS, and is alone
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ):
        try:
            return int(os.environ[rank]), int(os.environ.get(world, "1"))
        except (KeyError, ValueError):
            continue
    return 0, 1


def _local_rank() -> int:
    try:
        return int(os.environ.get("LOCAL_RANK", "0"))
    except ValueError:  # the trainer may not read it, and is watched all the same
        return 0


def without_nan(value: Any) -> Any:
    """Return a value with None for every number that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return value


class FactWriter:
    """Appends facts to this process's file, which the first of them makes.

    A fork of the process writes nothing. Neither does anything after a write that failed, which is
    reported once, on standard error.
    """

    def __init__(self, settings: WatchSettings) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.rows = 0
        self._file: int | None = None
        self._failed = False

    @property
    def open(self) -> bool:
        """Return whether anything has been written."""
        return self._file is not None

    def write(self, kind: str, *, step: int = 0, model: int | None = None, **fact: Any) -> None:
        """Write one fact; nothing that goes wrong leaves this function."""
        self.write_all(kind, [(step, fact)], model)

    def write_all(
        self, kind: str, facts: list[tuple[int, dict[str, Any]]], model: int | None
    ) -> None:
        """Write facts of one kind, each with its step, at once."""
        if not facts or self._failed or os.getpid() != self.pid:
            return
        try:
            if self._file is None:
                self._begin()
            self._lines(kind, facts, model)
            self.rows += len(facts) if kind == "rows" else 0
        except Exception as error:  # a full disk, a folder that cannot be written into, …
            self._failed = True
            try:
                sys.stderr.write(f"vtool watch: facts are no longer written: {error!r}\n")
            except Exception:  # standard error may be closed: then it cannot be reported
                self._failed = True

    @property
    def failed(self) -> bool:
        """Return whether nothing is written any more."""
        return self._failed

    def _begin(self) -> None:
        os.makedirs(self.settings.folder, mode=0o700, exist_ok=True)
        rank, world = rank_and_world()
        path = os.path.join(self.settings.folder, f"rank{rank}-{self.pid}.jsonl")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        transformers = sys.modules.get("transformers")
        settings = self.settings
        process = {
            "format": FORMAT,
            "pid": self.pid,
            "local_rank": _local_rank(),
            "world": world,
            "argv": [str(word)[:300] for word in getattr(sys, "argv", [])][:40],
            "executable": sys.executable,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": getattr(transformers, "__version__", None),
            "host": socket.gethostname(),
            "time": time.time(),
            "steps": settings.steps,
            "every": settings.every,
            "tokens": settings.tokens,
            "mib": settings.mib,
            "text": settings.text,
        }
        self._lines("process", [(0, process)], None)

    def _lines(self, kind: str, facts: list[tuple[int, dict[str, Any]]], model: int | None) -> None:
        assert self._file is not None
        rank = rank_and_world()[0]
        texts = []
        for step, fact in facts:
            line = {"kind": kind, "step": step, "rank": rank, "model": model, **fact}
            try:
                texts.append(_ENCODE(line))
            except ValueError:  # to look at each value first takes longer than to write them
                texts.append(_ENCODE(without_nan(line)))
        data = "".join(text + "\n" for text in texts).encode()
        while data:
            data = data[os.write(self._file, data) :]
