"""Failing writes: each write-side operation of a command fails in turn, by a preloaded shim."""

import ctypes
import errno
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.campaign import runs, template
from tests.campaign.ends import keep_caches, timeless
from tests.campaign.state import Tally

SHORT = -1
"""The shim's word for a write of half of the bytes."""
FAULTS = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EROFS": errno.EROFS,
    "EMFILE": errno.EMFILE,
    "short write": SHORT,
}
LASTING = ("ENOSPC", "EROFS")
"""A disk that is full stays so: of these, every second fault lasts to the command's end."""
FOREVER = 1 << 40


@dataclass(frozen=True, slots=True)
class Case:
    """A command whose writes fail: a run, or what is made from a finished one."""

    name: str
    variant: str = "ddp"
    words: tuple[str, ...] | None = None
    root: str = "out"
    """The folder below which writes of a command fail."""


CASES = (
    Case("plain"),
    Case("async", "async"),
    Case("2 ranks", "ddp, 2 ranks"),
    Case("export", words=("export", runs.RUN, "--output", "out/export")),
    Case("report", words=("report", runs.RUN, "--output", "out/report.html")),
    Case("convert", words=("convert", "ROWS/train.jsonl", "out/rows.jsonl")),
    Case("convert to Parquet", words=("convert", "ROWS/train.jsonl", "out/rows.parquet")),
    Case("evaluate", words=("evaluate", runs.RUN, "ROWS/test.jsonl", "--to", "out/answers")),
    Case(
        "verify's caches",
        words=("verify", "ROWS/train.parquet", "data.image={min_pixels:784,max_pixels:784}"),
        root="cache",
    ),
)


def build_shim(folder: Path) -> Path | None:
    """Compile the shim; None where there is no `cc`."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    if shutil.which("cc") is None:
        return None
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library.absolute()


def fail_writes(tally: Tally, folder: Path, until: float) -> None:
    """Let one operation after the other fail, in a drawn order, until a moment."""
    if "shim.so" not in os.environ.get("LD_PRELOAD", ""):
        tally.counts["skipped: no cc"] += 1
        return
    while time.monotonic() < until:
        turn, place = divmod(tally.next, len(CASES))
        _bench(CASES[place], folder).trial(tally, turn)
        tally.next += 1


class _Bench:
    """A command, what it leaves behind when nothing fails, and how many operations it has."""

    def __init__(self, case: Case, straights: runs.Straights) -> None:
        self.case, self.straights = case, straights
        self.variant = runs.VARIANTS[case.variant]
        self.expected: Mapping[str, Any] = {}
        self.operations = 0

    def arguments(self) -> list[str]:
        if self.case.words is not None:
            rows = str(self.straights.rows)
            return [word.replace("ROWS", rows) for word in self.case.words]
        return runs.command(self.straights.rows, self.variant)

    def root(self, place: Path) -> Path:
        """Return the folder below which writes fail."""
        return place / (runs.RUN if self.case.words is None else self.case.root)

    def place(self, name: str) -> Path:
        place = runs.fresh(self.straights.folder / name)
        if self.case.words is not None:
            self.straights.of(self.variant)
            shutil.copytree(self.straights.folder_of(self.variant) / runs.RUN, place / runs.RUN)
            self.root(place).mkdir()
            if not (rows := self.straights.rows / "train.parquet").exists():
                template.run(["convert", str(rows.with_suffix(".jsonl")), str(rows)], place)
        return place

    def content(self, place: Path) -> Mapping[str, Any]:
        if self.case.words is None:
            return runs.content(place / runs.RUN)
        root = self.root(place)
        return {
            file.relative_to(root).as_posix(): timeless(file)
            for file in sorted(root.rglob("*"))
            if file.is_file() and self.case.root == "out" and file.name != ".lock"
        }

    def start(self, place: Path, first: int, last: int, fault: int) -> template.Forked:
        def prepare(rank: int) -> None:
            if rank:
                return
            if self.case.words is not None:
                keep_caches(place / "cache")
            hits = os.open(place / "hits", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
            shim = ctypes.CDLL(None)
            shim.fault_arm.argtypes = [ctypes.c_char_p, *[ctypes.c_long] * 2, *[ctypes.c_int] * 2]
            shim.fault_arm(str(self.root(place)).encode(), first, last, fault, hits)

        return template.fork(
            self.arguments(), place, world=self.variant.world, prepare=prepare, log="faulty"
        )

    def count(self) -> None:
        """Run once without a fault."""
        place = self.place("counted")
        done = self.start(place, 1, FOREVER, 0).wait()
        if any(done.status.values()):
            raise SystemExit(f"{self.case.name} fails without a fault: {done.printed}")
        self.operations = len((place / "hits").read_text().splitlines())
        self.expected = self.content(place)

    def trial(self, tally: Tally, turn: int) -> None:
        """Let an operation fail; look at the output; continue without faults; compare."""
        if not self.operations:
            self.count()
            tally.measured[f"operations: {self.case.name}"] = self.operations
        lap, number = divmod(turn, self.operations)
        order = tally.draw(0).sample(range(1, self.operations + 1), self.operations)
        operation = order[number]
        word = list(FAULTS)[(lap + operation) % len(FAULTS)]
        lasting = word in LASTING and number % 2 == 0
        place = self.place("faulty")
        done = self.start(place, operation, FOREVER if lasting else operation, FAULTS[word]).wait()
        hits = (place / "hits").read_text().split()
        tally.counts["faults" if hits else "operation not reached"] += 1
        if hits:
            tally.counts[f"faults: {self.case.name}"] += 1
            tally.counts[f"faults: {word}"] += 1
            tally.counts[f"faults: {hits[1]}"] += 1
        what = (
            f"trial {tally.next}: {self.case.name}, operation {operation}"
            f" ({hits[1] if hits else 'not reached'}) {word}{', lasting' if lasting else ''}"
        )
        if kinds := [*self.problems_of_end(done, bool(hits), word), *self.after(place, done)]:
            end = runs.last_lines(done.printed)
            kept = self.straights.folder / f"fault-{tally.next}"
            shutil.rmtree(kept, ignore_errors=True)
            place.rename(kept)
            for kind in kinds:
                tally.problem(kind, f"{what}: {done.status} {end}")

    def problems_of_end(self, done: template.Forked, hit: bool, word: str) -> list[str]:
        """Return the problems with how the command ended."""
        failed = any(done.status.values())
        found = []
        if done.hung:
            found.append("a command whose write failed hangs")
        if name := template.traceback_in(done.printed):
            found.append(f"a traceback of {name} where a finding belongs")
        elif failed and not re.search(r"error\[[a-z-]+ VT\d+\]", done.printed):
            found.append("a failed write ends the command without a finding")
        if failed and (not hit or word == "short write"):
            found.append("the command fails though no write did")
        return found

    def after(self, place: Path, done: template.Forked) -> list[str]:
        """Continue without faults, and return what is wrong then."""
        found = []
        if any(done.status.values()) or "report: not written" in done.printed:
            least = _least_checkpoint(place / runs.RUN) if self.case.words is None else 0
            again = template.run(self.arguments(), place, world=self.variant.world, log="again")
            if any(again.status.values()):
                return ["a run does not go on after a failed write"]
            resumed = re.search(r"resuming after step (\d+)", again.printed)
            if least > (int(resumed[1]) if resumed else 0) and "already" not in again.printed:
                found.append("a checkpoint from before the failed write is lost")
        if different := runs.differences(self.expected, self.content(place)):
            found.append(f"other bytes after a failed write in {', '.join(different[:3])}")
        return found


@cache
def _bench(case: Case, folder: Path) -> _Bench:
    return _Bench(case, runs.straights_in(folder))


def _least_checkpoint(run: Path) -> int:
    """Return the step that a run must resume from, by the lines of metrics that it had written."""
    try:
        reached = run.joinpath("metrics.jsonl").read_text().count('"loss"')
    except OSError:
        return 0
    # the checkpoint of the step that was reached may be the one that failed, and an asynchronous
    # one before it too
    return max(0, (reached - 1) // runs.EVERY * runs.EVERY - runs.EVERY)
