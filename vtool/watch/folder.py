"""The folder of the facts, and the variables by which processes find it."""

import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INJECT = Path(__file__).parent / "inject"
"""The folder that is put on PYTHONPATH."""
FACTS = "rank*.jsonl"


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of the part that runs in the trainer."""

    steps: int = 3
    every: int = 0
    tokens: int = 4096
    memory: int = 1024
    text: bool = True

    def variables(self, folder: Path) -> dict[str, str]:
        """Return the environment variables for these options, without PYTHONPATH."""
        return {
            "VTOOL_WATCH_TO": str(folder.resolve()),
            "VTOOL_WATCH_STEPS": str(self.steps),
            "VTOOL_WATCH_EVERY": str(self.every),
            "VTOOL_WATCH_TOKENS": str(self.tokens),
            "VTOOL_WATCH_MIB": str(self.memory),
            "VTOOL_WATCH_TEXT": "1" if self.text else "0",
        }


def make_folder(folder: Path | None) -> Path:
    """Make the folder of the facts, which its owner alone can read: they hold training text.

    Raises:
        ValueError: it has something in it, or cannot be made or written into.
    """
    folder = folder or _fresh()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = sorted(path.name for path in folder.iterdir())
        if any(folder.glob(FACTS)):
            raise ValueError(
                f"{folder} has the facts of an earlier run; name another folder, or read it:"
                f" vtool watch --read {shlex.quote(str(folder))}"
            )
        if held:
            raise ValueError(f"{folder} is not empty ({held[0]}); name a folder of its own")
        folder.chmod(0o700)
        probe = folder / ".vtool"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be written into: {error.strerror}; name another folder (--to DIR)"
        ) from error
    return folder


def _fresh() -> Path:
    name = time.strftime("watch-%Y%m%d-%H%M%S")
    folder, number = Path(name), 1
    while folder.exists():
        number += 1
        folder = Path(f"{name}-{number}")
    return folder


def watched_environment(
    folder: Path, options: WatchOptions, own: Mapping[str, str]
) -> dict[str, str]:
    """Return an environment in which every Python that trains is watched."""
    path = os.pathsep.join(filter(None, (str(INJECT), own.get("PYTHONPATH"))))
    return {**own, "PYTHONPATH": path, **options.variables(folder)}


def exports(folder: Path, options: WatchOptions) -> str:
    """Return the same as lines for a shell, for srun, Ray and containers."""
    path = f"export PYTHONPATH={shlex.quote(str(INJECT))}${{PYTHONPATH:+:$PYTHONPATH}}"
    lines = [f"export {name}={shlex.quote(v)}" for name, v in options.variables(folder).items()]
    return "\n".join([path, *lines]) + "\n"
