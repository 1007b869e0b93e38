"""Damaged input, in process: no crash, no hang, no hunger, never clean where an oracle refuses.

An input follows from the campaign's seed and its number alone, so that any can be made again:
`python -m tests.campaign --seed S --input N`.
"""

import json
import mmap
import os
import resource
import shutil
import signal
import struct
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.campaign import files, runs, targets
from tests.campaign.state import Tally
from tests.campaign.targets import Verdict

MIB = 512
"""Memory that one input may take above what the process has."""
BATCH = 4000
"""Inputs that one forked process is given."""
HANGS = 20.0
"""Processor time after which the kernel ends a process, in a function of C too."""
WALL = 120.0
"""Seconds of one input after which its process is killed."""
TARGETS = targets.TARGETS | files.TARGETS
WEIGHTED = [name for name, target in TARGETS.items() for _ in range(target.weight)]


class TooSlow(Exception):
    """An input has taken more than its time."""


def prepare(place: Path) -> None:
    """Write what is in the folder of the inputs."""
    targets.prepare(place)
    files.prepare(place)


def name_of(tally: Tally, number: int) -> str:
    return tally.draw(number).choice(WEIGHTED)


def fuzz(tally: Tally, folder: Path, until: float) -> None:
    """Try inputs until a moment, a batch in a forked process each."""
    runs.fresh(folder)
    ground = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else folder
    place = ground / f"campaign-{os.getpid()}"
    try:
        prepare(place)
        while time.monotonic() < until:
            _batch(tally, place, until)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _batch(tally: Tally, place: Path, until: float) -> None:
    """Run a batch in a child: the number that it has reached names the input that ends it."""
    first = tally.next
    reached = mmap.mmap(-1, 8)
    out = place / "batch.json"
    out.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        _child(tally, place, first, until, reached, out)
    status = _wait(pid, reached)
    last = struct.unpack("q", reached[:])[0]
    if out.exists():
        written = json.loads(out.read_text())
        for kind, text in written["problems"]:
            tally.problem(kind, text)
        tally.counts.update(written["counts"])
    if status:
        code = os.waitstatus_to_exitcode(status)
        said = runs.last_lines((place / "stderr").read_text(errors="replace"), 3)
        kind = f"{name_of(tally, last)}: the process ended with {code}"
        tally.problem(kind, f"input {last}: {said}")
    tally.next = last + 1


def _wait(pid: int, reached: mmap.mmap) -> int:
    """Return the status of a child; kill it where one input takes too long."""
    at, since = b"", time.monotonic()
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if (now := reached[:]) != at:
            at, since = now, time.monotonic()
        elif time.monotonic() > since + WALL:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return ended[1]


def _child(
    tally: Tally, place: Path, first: int, until: float, reached: mmap.mmap, out: Path
) -> None:
    problems: list[tuple[str, str]] = []
    counts: Counter[str] = Counter()
    try:
        os.dup2(os.open(place / "stderr", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
        signal.signal(signal.SIGVTALRM, _too_slow)
        for number in range(first, first + BATCH):
            reached[:] = struct.pack("q", number)
            _limit()
            name, verdict = try_input(tally, number, place)
            counts["inputs"] += 1
            counts[f"inputs: {name}"] += 1
            counts[f"{name}: {verdict.answer}"] += 1
            if verdict.problem:
                problems.append((f"{name}: {verdict.problem}", f"input {number}: {verdict.shown}"))
            if time.monotonic() > until:
                break
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        kept = {kind: (kind, text) for kind, text in reversed(problems)}
        repeats = Counter(f"problem: {kind}" for kind, _ in problems)
        counts.update({kind: count - 1 for kind, count in repeats.items() if count > 1})
        out.write_text(json.dumps({"counts": counts, "problems": list(kept.values())}))
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _limit() -> None:
    """Limit this process's memory, beyond what it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * mmap.PAGESIZE + (MIB << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def _too_slow(number: int, frame: Any) -> None:
    _ALARMS.append(number)  # where whatever is raised is caught
    raise TooSlow


_ALARMS: list[int] = []


def try_input(tally: Tally, number: int, place: Path) -> tuple[str, Verdict]:
    """Make one input, and judge what the code under test says of it."""
    draw = tally.draw(number)
    name = draw.choice(WEIGHTED)
    target = TARGETS[name]
    slow = Verdict("slow", f"more than {target.seconds:.0f} s", "")
    _ALARMS.clear()
    # a first alarm, and others in case that it is raised where exceptions are caught
    signal.setitimer(signal.ITIMER_VIRTUAL, target.seconds, 1.0)
    signal.setitimer(signal.ITIMER_PROF, HANGS)
    try:
        verdict = target.judge(draw, place)
        return name, slow if _ALARMS else verdict
    except TooSlow:
        return name, slow
    except MemoryError:
        return name, Verdict("memory", f"more than {MIB} MiB", "")
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}:{at.lineno}"
        kind = f"{type(error).__name__} at {where}"
        return name, Verdict("crash", kind, str(error)[:200])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def show(tally: Tally, number: int, folder: Path) -> None:
    """Make one input again, and print it with its verdict."""
    prepare(folder)
    print(*try_input(tally, number, folder), sep="\n")
