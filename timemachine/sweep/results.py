"""The results of a sweep over classes, as they are kept in a file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from timemachine.page import write

RESULTS = Path(__file__).parent / "results.json"
AS_GOOD_AS_ONE = 0.01
"""The largest distance from 1 of a ratio of two norms: rows have one length, nothing is random."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a class: by its gradients, and by `vtool watch`."""

    state: str
    """`ran`; or `not-run`, `raised`, `crashed` or `hung`: then `reason` says why."""
    reason: str = ""
    times: float | None = None
    """The norm of the gradient of four micro-batches, over that of one with the same rows."""
    rules: tuple[str, ...] = ()
    """Rules of the watch that have an error or a warning."""
    read: bool = False
    """True where the watch could read the learnt tokens and the arrival of their gradient."""

    @property
    def is_wrong(self) -> bool:
        """Return whether the gradient depends on the number of micro-batches."""
        return self.times is not None and abs(self.times - 1) > AS_GOOD_AS_ONE

    @property
    def summary(self) -> str:
        """The result, in a line."""
        if self.state != "ran":
            return f"{self.state}: {self.reason}"
        says = ", ".join(self.rules) or ("nothing" if self.read else "not run")
        return f"gradient x{self.times:.3f}; vtool watch: {says}"


class Environment(Protocol):
    """The code and releases that a sweep was run with."""

    digest: str
    versions: Mapping[str, str]


def read_file(file: Path) -> dict[str, Any]:
    """Read the document of a sweep; empty where there is none yet."""
    return dict(json.loads(file.read_text("utf-8"))) if file.is_file() else {}


def read_results(file: Path) -> dict[str, Any]:
    """Read what was kept: results by the names of classes, and the digest that they hold for."""
    found = read_file(file)
    results = {
        name: Trained(**{**one, "rules": tuple(one["rules"])})
        for name, one in found.get("classes", {}).items()
    }
    return {"digest": found.get("digest", ""), "classes": results}


def write_results(file: Path, results: Mapping[str, Trained], of: Environment) -> None:
    """Write results, with what they hold for."""
    document = {
        "version": 1,
        "digest": of.digest,
        "versions": dict(of.versions),
        "classes": {name: asdict(results[name]) for name in sorted(results)},
    }
    write(file, f"{json.dumps(document, indent=1)}\n")
