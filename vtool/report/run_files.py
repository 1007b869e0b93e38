"""A run's folder, read into frozen records.

Files that are absent, unfinished or damaged are named in `notices`, never raised: the run may still
write, any file may be missing, and the last line of a `.jsonl` may be half written.
"""

import fcntl
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from vtool.contents import small_file
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.near_runs import runs_there
from vtool.report.settings import SettingLine, read_settings

_RUN_FILES = ("config.yaml", "metrics.jsonl", "result.json")
LARGEST_RUN_FILE = 2**29
"""Bytes of a run's file that is read: the metrics of millions of steps."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """One training step.

    `tokens` and `samples` are of this step, `distinct_samples` and `seconds` since the run began.
    """

    step: int
    epoch: float | None
    loss: float | None
    grad_norm: float | None
    lr: float | None
    tokens: float | None
    samples: float | None
    distinct_samples: float | None
    seconds: float | None
    supervised_tokens: float | None = None
    visual_tokens: float | None = None
    padding_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class EvaluationLine:
    """One evaluation on the validation rows."""

    step: int
    nll: float | None
    exact_match: float | None
    samples: float | None
    token_accuracy: float | None = None
    sources: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """Scores of each source, by its name."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The model's answer to one test row."""

    row: str
    question: str
    reference: str
    answer: str
    correct: bool
    image: str | None


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The contents of a run's folder.

    An absent file gives an empty value, and a notice where it is expected.
    """

    folder: Path
    name: str
    settings: tuple[SettingLine, ...]
    data: Mapping[str, Any]
    steps: tuple[StepLine, ...]
    evaluations: tuple[EvaluationLine, ...]
    predictions: tuple[Prediction, ...]
    result: Mapping[str, Any] | None
    """The contents of result.json; None while the run continues, or when it did not finish."""
    checkpoints: tuple[str, ...]
    exported: bool
    running: bool | None
    """True where a process is training in it; None where that is not known."""
    notices: tuple[str, ...]
    asked_again: tuple[tuple[int, tuple[Prediction, ...]], ...] = ()
    """Steps of evaluations, and the answers that the same few validation rows had then."""

    def setting(self, key: str) -> str | None:
        """Return the value of a setting, as written; None where it is not known."""
        return next((setting.value for setting in self.settings if setting.key == key), None)


def check_is_run(folder: Path) -> None:
    """Raise `not-a-run` unless a run has begun to write here."""
    try:
        found = any((folder / name).is_file() for name in _RUN_FILES)
    except OSError as error:  # a folder that nobody may look into, a name that is too long
        message = f"{folder} cannot be looked at: {error.strerror}"
        help = "give the folder that `vtool train` printed"
        raise Findings(Diagnostic("not-a-run", message, help), fatal=True) from error
    if not found:
        what = f"there is no {' and no '.join(_RUN_FILES)}"
        close = None
        if not folder.is_dir():
            of_name = len(folder.parts) == 1
            what = "there is no such folder"
            what += ", and no run or sweep of that name in runs/" if of_name else ""
            close = did_you_mean(near(folder.name, run_names(folder.parent, of_name=of_name)))
        help = close or runs_there(folder) or "give the folder that `vtool train` printed"
        raise Findings(Diagnostic("not-a-run", f"{folder} is no run: {what}", help), fatal=True)


def run_names(folder: Path, *, of_name: bool) -> list[str]:
    """Return the names of runs in a folder, or of runs and sweeps in `runs/`."""
    try:
        there = [each.name for each in (Path("runs") if of_name else folder).iterdir()]
    except OSError:
        return []
    # a sweep of NAME has its runs in NAME-KEY=VALUE
    sweeps = {name.partition("=")[0].rpartition("-")[0] for name in there if "=" in name}
    return [*there, *sorted(sweeps)] if of_name else there


def read_run(folder: Path) -> RunFiles:
    """Read everything there is.

    Raises:
        Findings: `not-a-run`.
    """
    check_is_run(folder)
    notices: list[str] = []
    settings = _settings(folder / "config.yaml", notices)
    rows = _json_lines(folder / "metrics.jsonl", notices)
    data = _json_object(folder / "data.json", notices, "the data ledger is not known")
    result = _json_object(
        folder / "result.json",
        notices,
        "the run is still running, or stopped before its end; nothing of it counts as passed or"
        " measured",
    )
    tested = result is not None and "test_samples" in result
    answers = _json_lines(folder / "predictions.jsonl", notices if tested else [])
    return RunFiles(
        folder=folder,
        name=next((s.value for s in settings if s.key == "run.name"), folder.resolve().name),
        settings=settings,
        data=data or {},
        steps=tuple(steps_of(rows)),
        evaluations=tuple(evaluations_of(rows)),
        predictions=tuple(_prediction(row) for row in answers),
        result=result,
        checkpoints=tuple(
            sorted(
                path.name
                for path in folder.glob("checkpoints/*")
                if re.fullmatch(r"step-[0-9]+", path.name)
            )
        ),
        exported=(folder / "export").is_dir(),
        running=in_training(folder),
        notices=tuple(notices),
        # an older vtool has written none
        asked_again=tuple(map(_asked_again, _json_lines(folder / "validation.jsonl", []))),
    )


def in_training(folder: Path) -> bool | None:
    """Return whether a process on this machine is training in a run's folder.

    None where no run has locked it yet.
    """
    try:
        # it may be a link or a pipe in a folder that is no run's: neither is followed or waited for
        lock = os.open(folder / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def steps_of(rows: Sequence[Mapping[str, Any]]) -> list[StepLine]:
    """Return the training steps among the lines of `metrics.jsonl`."""
    keys = [each.name for each in fields(StepLine) if each.name != "step"]
    return [
        StepLine(_position(row), *(number_in(row, key) for key in keys))
        for row in rows
        if "loss" in row
    ]


def evaluations_of(rows: Sequence[Mapping[str, Any]]) -> list[EvaluationLine]:
    """Return the evaluations among the lines of `metrics.jsonl`."""
    return [
        EvaluationLine(
            _position(row),
            number_in(row, "validation_nll"),
            number_in(row, "validation_exact_match"),
            number_in(row, "validation_samples"),
            number_in(row, "validation_token_accuracy"),
            _of_sources(row),
        )
        for row in rows
        if "validation_nll" in row or "validation_exact_match" in row
    ]


def _of_sources(row: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return the scores of each source in a line: `validation_nll/NAME` and the like."""
    found: dict[str, dict[str, float | None]] = {}
    for key in row:
        what, slash, name = key.partition("/")
        if slash and what.startswith("validation_"):
            found.setdefault(name, {})[what.removeprefix("validation_")] = number_in(row, key)
    return found


def number_in(record: Mapping[str, Any], key: str) -> float | None:
    """Return a number of a record, NaN and infinity included; None where there is none."""
    value = record.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if isinstance(value, float) or abs(value) < 2**63 else None


def _settings(path: Path, notices: list[str]) -> tuple[SettingLine, ...]:
    try:
        return read_settings(_text(path))
    except FileNotFoundError:
        notices.append("config.yaml is not there: the settings are not known.")
    except OSError as error:
        notices.append(f"config.yaml cannot be read: {error.strerror}. The settings are not known.")
    except (yaml.YAMLError, RecursionError) as error:
        notices.append(
            f"config.yaml cannot be read: {str(error).splitlines()[0]}. The settings are not known."
        )
    return ()


def _json_object(path: Path, notices: list[str], meaning: str) -> dict[str, Any] | None:
    try:
        value = json.loads(_text(path))
    except FileNotFoundError:
        notices.append(f"{path.name} is not there: {meaning}.")
        return None
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        notices.append(f"{path.name} is damaged or half written: {meaning}.")
        return None
    return value


def _json_lines(path: Path, notices: list[str]) -> list[dict[str, Any]]:
    try:
        # Not `splitlines`, which also cuts at characters that JSON allows inside a string.
        lines = _text(path).split("\n")
    except FileNotFoundError:
        notices.append(f"{path.name} is not there: nothing of it is shown.")
        return []
    except OSError as error:
        notices.append(f"{path.name} cannot be read: {error.strerror}. Nothing of it is shown.")
        return []
    rows, broken = [], []
    for position, line in enumerate(lines, start=1):
        if (row := parse_line(line)) is not None:
            rows.append(row)
        elif line.strip():
            broken.append(str(position))
    if broken and broken[-1] == str(len(lines)):
        notices.append(
            f"{path.name}: the last line ({broken.pop()}) is half written and was left out."
        )
    if broken:
        notices.append(
            f"{path.name}: {len(broken)} damaged line(s) left out:"
            f" {', '.join(broken[:10])}{' …' if len(broken) > 10 else ''}."
        )
    return rows


def parse_line(line: str) -> dict[str, Any] | None:
    """Return the JSON object of a line, or None where it holds none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _text(path: Path) -> str:
    # A crash may leave bytes that are no UTF-8 in the last block; they must not hide the lines
    # before.
    return small_file(path, LARGEST_RUN_FILE).decode(errors="replace")


def _position(row: Mapping[str, Any]) -> int:
    step = row.get("step")
    # of larger ones no axis can be drawn
    return step if type(step) is int and 0 <= step < 2**53 else 0


def _asked_again(row: Mapping[str, Any]) -> tuple[int, tuple[Prediction, ...]]:
    answers = row.get("answers")
    rows = answers if isinstance(answers, list) else ()
    return _position(row), tuple(_prediction(each) for each in rows if isinstance(each, dict))


def _prediction(row: Mapping[str, Any]) -> Prediction:
    image = row.get("image")
    return Prediction(
        row=str(row.get("row", "")),
        question=str(row.get("question", "")),
        reference=str(row.get("reference", "")),
        answer=str(row.get("answer", "")),
        correct=row.get("correct") is True,
        image=image if isinstance(image, str) else None,
    )
