"""Benchmark: what only a GPU can say of this package, in one table.

Each row is a process of its own, so that one that crashes or runs out of memory takes no other
along. Ctrl-C, or the time limit, ends the row in work; all that was measured is printed, and is in
first-gpu-hour.json. Without a GPU everything runs at a tiny size, so that it works when it counts.

    scripts/first-gpu-hour.sh [--minutes 55] [--out FOLDER] [--size tiny|real] [ROW…]

Exit status: 0 where no row failed; 1 where one did; 2 where nothing was measured, or not all that
was asked for, as the time was over or the command was stopped.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.first_hour.outcome import Outcome

FILE = "first-gpu-hour.json"
STOPPED, OVER = "the command was stopped", "the time was over"
NOT_BEGUN = "not begun: "


_asked: list[int] = []
"""The signals that asked the command to stop.

They are looked for: an exception that came in the middle of a fork would be ignored.
"""


def _stop(number: int, _: FrameType | None) -> None:
    _asked.append(number)


def _work(row: Callable[..., Any], size: str | None, file: Path, log: Path) -> None:
    """Run a row: each outcome that it yields takes the place of the one before."""
    os.setsid()  # with all that it starts, it is ended as one
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(number, 1)
    os.dup2(number, 2)
    sys.stdout = sys.stderr = open(number, "w", buffering=1, encoding="utf-8")  # noqa: SIM115
    status = 0
    try:
        for outcome in row(size):
            outcome.write(file)
    except BaseException as error:
        traceback.print_exc()
        text = str(error).strip().partition("\n")[0]
        before = Outcome.read(file)
        said = f"; until then: {before.figure}" if before else ""
        numbers = before.numbers if before else {}
        Outcome("failed", f"{type(error).__name__}: {text}{said}", numbers).write(file)
        status = 1
    sys.stdout.flush()
    os._exit(status)  # libraries' own ends may hang


def measure(row: Callable[..., Any], size: str | None, folder: Path, seconds: float) -> Outcome:
    """Run a row in a process of its own, and return what it says, or why it says nothing."""
    file, log = folder / f"{row.__name__}.json", folder / f"{row.__name__}.log"
    file.unlink(missing_ok=True)
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(row, size, file, log), name=row.__name__
    )
    process.start()
    end, why = time.monotonic() + seconds, ""
    while process.exitcode is None and not why:
        process.join(0.1)
        why = STOPPED if _asked else OVER if time.monotonic() >= end else ""
    ended = process.exitcode is None
    if ended:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()
    outcome = Outcome.read(file)
    if ended:
        said = f"; until then: {outcome.figure}" if outcome else ""
        return Outcome("not run", f"{why}{said}", outcome.numbers if outcome else {})
    if process.exitcode and (outcome is None or outcome.state != "failed"):
        how = f"ended with {process.exitcode}"
        if process.exitcode < 0:
            name = signal.Signals(-process.exitcode).name
            how = f"was killed by {name}" + (": out of memory?" if name == "SIGKILL" else "")
        return Outcome("failed", f"its process {how}; see {log}")
    return outcome or Outcome("failed", f"it said nothing; see {log}")


def measure_all(
    rows: Mapping[str, Callable[..., Any]], size: str | None, folder: Path, minutes: float
) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcome of each row, also of those that were not begun."""
    end = time.monotonic() + 60 * minutes
    for name, row in rows.items():
        if _asked or time.monotonic() >= end:
            yield name, Outcome("not run", NOT_BEGUN + (STOPPED if _asked else OVER))
            continue
        print(f"{name}: …", file=sys.stderr, flush=True)
        yield name, measure(row, size, folder, end - time.monotonic())


def as_table(found: Mapping[str, Outcome]) -> str:
    """Return the table as Markdown."""
    lines = ["| row | | figure |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {name} | {one.state} | {one.figure} |" for name, one in found.items())]
    )


def exit_status(found: Mapping[str, Outcome]) -> int:
    """Return the status that the outcomes end the command with."""
    states = [one.state for one in found.values()]
    if "failed" in states:
        return 1
    ended = any(STOPPED in one.figure or OVER in one.figure for one in found.values())
    return 2 if ended or "passed" not in states else 0


def main() -> int:
    from benchmarks.first_hour.rows import ROWS, machine

    parser = argparse.ArgumentParser(
        prog="scripts/first-gpu-hour.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of: {', '.join(ROWS)}")
    parser.add_argument("--minutes", type=float, default=55.0, help="all rows together")
    parser.add_argument("--out", type=Path, default=Path("runs/first-gpu-hour"))
    parser.add_argument("--size", choices=("tiny", "real"), help="default: real on a GPU")
    options = parser.parse_args()
    if unknown := [each for each in options.rows if each not in ROWS]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    if not 0 < options.minutes < 1e5:
        parser.error("--minutes is a number above 0")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: {error}")
    chosen = {name: row for name, row in ROWS.items() if not options.rows or name in options.rows}
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _stop)
    found: dict[str, Outcome] = {}
    about = machine()
    for name, outcome in measure_all(chosen, options.size, options.out, options.minutes):
        found[name] = outcome
        said = {"machine": about, "rows": {key: one.plain() for key, one in found.items()}}
        written = options.out / f".{FILE}"
        written.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", "utf-8")
        written.replace(options.out / FILE)
        print(f"{name}: {outcome.state}: {outcome.figure}", file=sys.stderr, flush=True)
    print(f"{about}\n\n{as_table(found)}")
    return exit_status(found)


if __name__ == "__main__":
    sys.exit(main())
