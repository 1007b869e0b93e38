"""The state of a campaign, kept in a folder, so that it resumes where it was stopped."""

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_PROBLEMS = 200
ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "reliability.json"
"""The tallies that the page's table shows: a campaign of that seed resumes from there, anywhere."""


@dataclass
class Tally:
    """One part of the campaign: its trials are numbered, and what each does follows from that."""

    seed: int
    name: str
    next: int = 0
    """The number of the next trial."""
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """Problems that were found, each with what repeats it; a kind of problem is listed once."""
    measured: dict[str, Any] = field(default_factory=dict)

    def draw(self, number: int) -> random.Random:
        """Return the random numbers of a trial."""
        return random.Random(f"{self.seed}:{self.name}:{number}")

    def problem(self, kind: str, text: str) -> None:
        self.counts[f"problem: {kind}"] += 1
        first = self.counts[f"problem: {kind}"] == 1
        if first and len(self.problems) < MOST_PROBLEMS:
            for folder in (sys.prefix, str(ROOT)):  # the table is committed: no machine's own paths
                text = text.replace(f"{folder}/", "")
            self.problems.append(f"{kind}: {text}")
            print(f"{self.name}: {kind}: {text}", flush=True)


@dataclass
class State:
    """The tallies of a campaign, in `state.json` of its folder."""

    folder: Path
    seed: int
    tallies: dict[str, Tally] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path, seed: int) -> "State":
        """Read the state under this seed, from this folder or as the page shows it."""
        file = folder / "state.json"
        state = State(folder, seed)
        if not file.exists() and KEPT.exists() and json.loads(KEPT.read_text())["seed"] == seed:
            file = KEPT
        if file.exists():
            written = json.loads(file.read_text())
            if written["seed"] != seed:
                raise SystemExit(
                    f"{folder} is a campaign of seed {written['seed']}: give --seed"
                    f" {written['seed']} to go on with it, or another --state"
                )
            for each in written["tallies"]:
                each["counts"] = Counter(each["counts"])
                state.tallies[each["name"]] = Tally(**each)
        return state

    def tally(self, name: str) -> Tally:
        return self.tallies.setdefault(name, Tally(self.seed, name))

    def write(self, file: Path | None = None) -> None:
        written = {"seed": self.seed, "tallies": [vars(each) for each in self.tallies.values()]}
        file = file or self.folder / "state.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(file.name + ".writing")
        temporary.write_text(json.dumps(written, indent=1) + "\n")
        os.replace(temporary, file)

    @contextmanager
    def timed(self, tally: Tally) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            tally.seconds += time.monotonic() - began
            self.write()


Part = Callable[[Tally, Path, float], None]
"""A part works in a folder until a moment of `time.monotonic`, and writes what it did down."""
