"""The folder of an evaluation: what was asked, answers as they come, and the scores."""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vtool.config.schema.formats import PLACES
from vtool.contents import read_lines, read_small_json
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks
from vtool.evaluation.asking import AskedRow

_FIELDS = {each.name for each in fields(AskedRow)}
_LOCK, _SETTINGS = ".lock", "settings.json"
_PLACES = {"folder", *PLACES}
"""Paths of files, which say nothing where their digest is the same."""
_DIGESTS = ("digest", "sha256")


@dataclass(frozen=True, slots=True)
class Store:
    """An evaluation's folder."""

    path: Path

    @property
    def predictions(self) -> Path:
        """The file of answers, one row a line."""
        return self.path / "predictions.jsonl"

    @property
    def result(self) -> Path:
        """The file of scores."""
        return self.path / "result.json"

    def keep_comparison(self, against: Mapping[str, Any]) -> None:
        """Write how this evaluation's model compares with another one.

        Raises:
            Findings: `run-folder-unwritable`; fatal.
        """
        with self.writing():
            _write(self.path / "against.json", json.dumps(against, indent=1) + "\n")

    @contextmanager
    def held(self, ranks: Ranks) -> Iterator["Store"]:
        """Hold the folder while answers are written to it.

        Raises:
            Findings: `evaluation-differs`, `run-folder-unwritable`, `run-in-use`; fatal.
        """
        locks: list[int] = []  # not returned: an opened file cannot be sent to another rank
        ranks.on_rank_zero(lambda: locks.append(self._take()))
        try:
            yield self
        finally:
            for lock in locks:
                with suppress(OSError):  # a full disk: nothing was written to it
                    os.close(lock)

    def _take(self) -> int:
        with self.writing():
            if self.path.is_dir() and not (self.path / _SETTINGS).exists():
                own = {_LOCK, f".writing-{_SETTINGS}"}
                if other := sorted({each.name for each in self.path.iterdir()} - own):
                    message = f"{self.path} is no evaluation: it has {other[0]}, and no {_SETTINGS}"
                    raise Findings(Diagnostic("evaluation-differs", message), fatal=True)
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                os.close(lock)
                message = f"another process is evaluating into {self.path}"
                help = "wait for it, or name another folder: --to FOLDER"
                raise Findings(Diagnostic("run-in-use", message, help), fatal=True) from error
            return lock

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write down what is asked, or compare it with what the folder has answers to.

        Raises:
            Findings: `evaluation-differs`, `run-folder-unwritable`; fatal.
        """
        file = self.path / _SETTINGS
        with self.writing():
            if not file.exists():
                _write(file, json.dumps(settings, indent=1) + "\n")
                return
            try:
                before = read_small_json(file)
            except ValueError as error:
                message = f"{file} is no JSON: what its answers are to is not known"
                raise Findings(Diagnostic("evaluation-differs", message), fatal=True) from error
        if different := list(_differences(before, json.loads(json.dumps(settings)))):
            message = f"{self.path} has answers with other settings: {'; '.join(different)}"
            help = f"to ask again, remove {self.path}; to keep it, name another folder: --to FOLDER"
            raise Findings(Diagnostic("evaluation-differs", message, help), fatal=True)

    def read(self) -> dict[int, AskedRow]:
        """Return the answers that there are, by row; a line that a kill has cut is left out."""
        found: dict[int, AskedRow] = {}
        for file in sorted(self.path.glob("predictions*.jsonl")):
            with self.writing():
                for line in read_lines(file):
                    try:
                        values = json.loads(line)
                        known = {key: value for key, value in values.items() if key in _FIELDS}
                        known["images"] = tuple(known.get("images", ()))
                        one = AskedRow(**known)
                        found[one.index] = one
                    except (ValueError, TypeError, AttributeError, RecursionError):
                        continue
        return found

    def answers(self, kept: Sequence[int]) -> tuple[AskedRow, ...]:
        """Return the answers to these rows, which have all been asked."""
        there = self.read()
        return tuple(there[index] for index in kept)

    def append(self, answers: Iterable[AskedRow], rank: int = 0) -> None:
        """Add answers to the file of this rank; what was added stays if the process is killed.

        A line that a kill has cut is ended first.
        """
        file = self.predictions if rank == 0 else self.path / f"predictions.rank-{rank}.jsonl"
        text = "".join(json.dumps(one.as_dict()) + "\n" for one in answers)
        with self.writing(), file.open("ab+") as opened:
            if opened.tell():
                opened.seek(-1, os.SEEK_END)
                text = text if opened.read(1) == b"\n" else f"\n{text}"
            opened.write(text.encode())

    def finish(self, lines: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> None:
        """Write all answers with their scores, in the rows' order, and, last, the result."""
        with self.writing():
            _write(self.predictions, "".join(json.dumps(line) + "\n" for line in lines))
            for file in self.path.glob("predictions.rank-*.jsonl"):
                file.unlink()
            _write(self.result, json.dumps(result, indent=1) + "\n")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raise what the system says against a write to the folder as `run-folder-unwritable`."""
        try:
            yield
        except OSError as error:
            message = f"{error.filename or self.path}: {error.strerror or error}"
            help = "name another folder: --to FOLDER; answers that are written are kept"
            raise Findings(
                Diagnostic("run-folder-unwritable", message, help), fatal=True
            ) from error


def _write(file: Path, text: str) -> None:
    unfinished = file.with_name(f".writing-{file.name}")
    unfinished.write_text(text)
    unfinished.replace(file)


def _differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        same = any(key in now and before.get(key) == now[key] for key in _DIGESTS)
        for key in sorted(before.keys() | now.keys()):
            if not (same and key in _PLACES):
                place = f"{path}.{key}".lstrip(".")
                yield from _differences(before.get(key), now.get(key), place)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, pair in enumerate(zip(before, now, strict=True)):
            yield from _differences(*pair, f"{path}[{number}]")
    elif before != now:
        yield f"{path}: {_short(before)} then, {_short(now)} now"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
