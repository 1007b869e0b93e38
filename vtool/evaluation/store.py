"""The folder of an evaluation: what was asked, answers as they come, and the scores."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic, Findings
from vtool.evaluation.asking import Asked

_FIELDS = {each.name for each in fields(Asked)}


@dataclass(frozen=True, slots=True)
class Store:
    """An evaluation's folder."""

    path: Path

    @property
    def predictions(self) -> Path:
        return self.path / "predictions.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write down what is asked, or hold it against what the folder has answers to.

        Raises:
            Findings: `evaluation-differs`, `run-folder-unwritable`; fatal.
        """
        file = self.path / "settings.json"
        try:
            there = self.path.is_dir() and any(self.path.iterdir())
            if not there:
                self.path.mkdir(parents=True, exist_ok=True)
                _write(file, json.dumps(settings, indent=1) + "\n")
                return
            before = json.loads(file.read_text())
        except FileNotFoundError as error:
            message = f"{self.path} is not empty, and no evaluation: it has no settings.json"
            raise Findings(Diagnostic("evaluation-differs", message), fatal=True) from error
        except OSError as error:
            message = f"{self.path}: {error.strerror}"
            help = "name another folder: --to FOLDER"
            raise Findings(
                Diagnostic("run-folder-unwritable", message, help), fatal=True
            ) from error
        except (ValueError, RecursionError) as error:
            message = f"{file} is no JSON"
            raise Findings(Diagnostic("evaluation-differs", message), fatal=True) from error
        if different := list(_differences(before, json.loads(json.dumps(settings)))):
            message = f"{self.path} has answers that were got otherwise: {'; '.join(different)}"
            raise Findings(Diagnostic("evaluation-differs", message), fatal=True)

    def read(self) -> dict[int, Asked]:
        """Return the answers that there are, by row; a line that a kill has cut is left out."""
        found: dict[int, Asked] = {}
        for file in sorted(self.path.glob("predictions*.jsonl")):
            for line in file.read_bytes().split(b"\n"):
                try:
                    values = json.loads(line)
                    known = {key: value for key, value in values.items() if key in _FIELDS}
                    known["images"] = tuple(known.get("images", ()))
                    one = Asked(**known)
                except (ValueError, TypeError, AttributeError, RecursionError):
                    continue
                found[one.index] = one
        return found

    def append(self, answers: Iterable[Asked], rank: int = 0) -> None:
        """Add answers to the file of this rank; each line is on the disk's way when this returns.

        A line that a kill has cut is ended first.
        """
        file = self.predictions if rank == 0 else self.path / f"predictions.rank-{rank}.jsonl"
        text = "".join(json.dumps(one.as_dict()) + "\n" for one in answers)
        with file.open("ab+") as opened:
            if opened.tell():
                opened.seek(-1, os.SEEK_END)
                text = text if opened.read(1) == b"\n" else f"\n{text}"
            opened.write(text.encode())

    def finish(self, lines: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> None:
        """Write all answers with their scores, in the rows' order, and, last, the result."""
        _write(self.predictions, "".join(json.dumps(line) + "\n" for line in lines))
        for file in self.path.glob("predictions.rank-*.jsonl"):
            file.unlink()
        _write(self.result, json.dumps(result, indent=1) + "\n")


def _write(file: Path, text: str) -> None:
    unfinished = file.with_name(f".writing-{file.name}")
    unfinished.write_text(text)
    unfinished.replace(file)


def _differences(before: Any, now: Any, path: str = "") -> Iterable[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    elif before != now:
        yield f"{path}: {_short(before)} then, {_short(now)} now"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
