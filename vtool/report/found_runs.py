"""The runs that a name stands for: a folder, or every run of a sweep."""

from collections.abc import Sequence
from pathlib import Path


def find_runs(named: Sequence[Path]) -> list[Path]:
    """Return the folders of runs: those named, and in the place of a sweep's name all of its runs.

    A sweep of NAME has its runs in `runs/NAME-KEY=VALUE`; one with `run.dir=FOLDER`, in FOLDER.
    """
    return [run for each in named for run in _found(each)]


def find_run(named: Path) -> Path:
    """Return the folder of a run, by its path or by its name in `runs/`."""
    own = Path("runs") / named
    return own if not named.exists() and (own / "config.yaml").is_file() else named


def _found(named: Path) -> list[Path]:
    try:
        if any((named / name).is_file() for name in ("config.yaml", "metrics.jsonl")):
            return [named]
        inside = sorted(path for path in named.glob("*=*") if (path / "config.yaml").is_file())
        if inside:
            return inside
        if len(named.parts) == 1 and not named.exists():
            if (run := find_run(named)) != named:
                return [run]
            runs = Path("runs")
            found = sorted(runs.glob(f"{_plain(str(named))}-*=*"))
            return [path for path in found if (path / "config.yaml").is_file()] or [named]
    except OSError:  # the caller reports what is wrong with the folder
        pass
    return [named]


def _plain(name: str) -> str:
    """Return a name for `glob` with its special characters escaped."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
