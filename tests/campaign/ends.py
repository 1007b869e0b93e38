"""Kills of every other command: nothing stays behind, and the next one makes the same.

A command is killed at a moment drawn uniformly, or one of its children is. Then no process that it
has started may be alive, and the same command, started again, must end well, without a file of the
killed one left, and in the bytes of a command that nothing happened to.
"""

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.campaign import runs, template
from tests.campaign.state import Tally
from tests.rows import mixed_rows, write_rows
from vtool.data import audit_cache
from vtool.data.containers import parquet

GONE = 30.0
"""Seconds in which the processes of a killed command have to end."""
AGE = 2 * 3600
"""Seconds by which what a killed command left is made older: caches wait so long for its maker."""
_LEFT = re.compile(r"\.part$|^\.?(writing|making)-|^vtool-tmp-")
_TRAINER = """
import sys, time, torch
from transformers import Qwen2Config, Qwen2ForCausalLM
torch.manual_seed(0)
sizes = dict(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
model = Qwen2ForCausalLM(Qwen2Config(vocab_size=32, hidden_size=8, intermediate_size=8, **sizes))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(4):
    ids = torch.arange(12).view(1, 12) + step
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A command; its words may name `{run}`, a finished run, and `{turn}`, the number of a try."""

    name: str
    words: Callable[[Path], Sequence[str]]
    content: Callable[[Path], Mapping[str, Any]]
    child: bool = False
    """True where one of its children is killed, and not the command itself."""
    fails: bool = False
    """True where the kill of a child has to end it with a finding."""
    once: bool = False
    """True where it does not touch what is there already; a killed one leaves all of it or none."""
    stays: bool = False
    """True where what it starts is the user's own, and goes on."""


def _split(rows: Path, more: Sequence[str]) -> list[str]:
    return runs.command(rows, runs.VARIANTS["ddp"], *more)


def _content_of(name: str) -> Callable[[Path], Mapping[str, Any]]:
    """Return the reader of the files below a name, without what times change."""

    def read(place: Path) -> Mapping[str, Any]:
        file = place / name
        files = [file] if file.is_file() else sorted(file.rglob("*"))
        return {
            one.relative_to(place).as_posix(): timeless(one)
            for one in files
            if one.is_file() and one.name != ".lock"
        }

    return read


def timeless(file: Path) -> Any:
    """Return a file's bytes; of JSON, what is not a time, a rate or a version of a file."""
    content = file.read_bytes()
    try:
        return _without_times(json.loads(content)) if file.suffix == ".json" else content
    except ValueError:
        return content


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_times(each)
            for key, each in value.items()
            if not re.search(r"second|time|date|memory|started|ended|command", key)
        }
    return [*map(_without_times, value)] if isinstance(value, list) else value


def _runs_below(name: str) -> Callable[[Path], Mapping[str, Any]]:
    def read(place: Path) -> Mapping[str, Any]:
        return {
            f"{run.parent.name}/{file}": content
            for run in sorted((place / name).rglob("config.yaml"))
            if "export" not in run.parts
            for file, content in runs.content(run.parent).items()
        }

    return read


def _watched(place: Path) -> list[str]:
    (place / "trainer.py").write_text(_TRAINER)
    facts = f"facts-{len([*place.glob('facts-*')])}"
    words = ["watch", "--to", facts, "--json", "watched.json", "--"]
    return [*words, sys.executable, "trainer.py"]


def _cases(rows: Path) -> tuple[Case, ...]:
    many, run = str(rows / "many.jsonl"), runs.RUN
    verified = ["verify", many, "data.image={min_pixels:784,max_pixels:784}", "--format", "json"]
    return (
        Case(
            "convert", lambda _: ["convert", many, "out.jsonl"], _content_of("out.jsonl"), once=True
        ),
        Case(
            "convert to Parquet",
            lambda _: ["convert", many, "o.parquet"],
            _content_of("o.parquet"),
            once=True,
        ),
        Case("verify", lambda _: verified, _content_of("output.json")),
        Case(
            "verify from Parquet",
            lambda _: ["verify", str(rows / "many.parquet"), *verified[2:]],
            _content_of("output.json"),
        ),
        Case(
            "evaluate",
            lambda _: ["evaluate", run, str(rows / "test.jsonl"), "--to", "ev"],
            _content_of("ev"),
        ),
        Case(
            "export",
            lambda _: ["export", run, "--output", "exported"],
            _content_of("exported"),
            once=True,
        ),
        Case("report", lambda _: ["report", run, "--output", "r.html"], _content_of("r.html")),
        Case("chat", lambda _: ["chat", run, "--max-new-tokens", "3"], _content_of("output.json")),
        Case("watch", _watched, _content_of("watched.json"), stays=True),
        Case(
            "verify, an audit's worker",
            lambda _: [*verified, "data.workers=2", "--fresh"],
            _content_of("output.json"),
            child=True,
            fails=True,
        ),
        Case(
            "train, a data worker",
            lambda _: _split(rows, ("data.workers=2", "run.dir=trained")),
            _runs_below("trained"),
            child=True,
            fails=True,
        ),
        Case(
            "train, the launcher's parent",
            lambda _: _split(rows, ("launch.nproc=2", "run.dir=trained")),
            _runs_below("trained"),
        ),
        Case(
            "train, a sweep",
            lambda _: [*_split(rows, ("run.dir=swept", "optim.lr=0.1,0.2")), "-m"],
            _runs_below("swept"),
        ),
    )


def kill_commands(tally: Tally, folder: Path, until: float) -> None:
    """Kill commands until a moment."""
    tally.measured["not run"] = "serve (there is no vLLM)"
    bench = _bench(folder)
    while time.monotonic() < until:
        bench.trial(tally, bench.cases[tally.next % len(bench.cases)])
        tally.next += 1


@cache
def _bench(folder: Path) -> "_Bench":
    return _Bench(folder)


class _Bench:
    """The commands, the run that some read, and what each makes when nothing happens to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.straights = runs.straights_in(folder)
        rows = self.straights.rows
        write_rows(rows / "many.jsonl", mixed_rows(rows, 3) * 100)
        if not (rows / "many.parquet").exists():
            template.run(["convert", str(rows / "many.jsonl"), "many.parquet"], rows, log="made")
        self.cases = _cases(rows)
        self.expected: dict[str, tuple[Mapping[str, Any], float]] = {}

    def place(self) -> Path:
        place = runs.fresh(self.folder / "end")
        variant = runs.VARIANTS["ddp"]
        self.straights.of(variant)
        shutil.copytree(self.straights.folder_of(variant) / runs.RUN, place / runs.RUN)
        for name in ("tmp", "cache"):
            (place / name).mkdir()
        (place / "asked").write_text("What is this?\n/reset\nWhat is that?\n")
        return place

    def start(self, case: Case, place: Path, log: str) -> template.Forked:
        def prepare(rank: int) -> None:
            os.setpgid(0, 0)
            os.environ["TMPDIR"] = str(place / "tmp")
            tempfile.tempdir = None
            keep_caches(place / "cache")
            os.dup2(os.open(place / "asked", os.O_RDONLY), 0)
            flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
            os.dup2(os.open(place / "output.json", flags), 1)

        return template.fork(list(case.words(place)), place, prepare=prepare, log=log)

    def straight(self, case: Case) -> tuple[Mapping[str, Any], float]:
        if case.name not in self.expected:
            place = self.place()
            began = time.monotonic()
            done = self.start(case, place, "straight").wait()
            seconds = time.monotonic() - began
            if any(done.status.values()):
                raise SystemExit(f"{case.name} fails by itself: {done.printed[-2000:]}")
            self.expected[case.name] = case.content(place), seconds
        return self.expected[case.name]

    def trial(self, tally: Tally, case: Case) -> None:
        """Kill a command once or twice, start it again, and compare."""
        expected, seconds = self.straight(case)
        draw, place = tally.draw(tally.next), self.place()
        killed = []
        for turn in range(draw.choice((1, 1, 2))):
            number = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
            number = signal.SIGKILL if case.child else number
            moment = draw.random()
            done = self.start(case, place, f"killed-{turn}")
            killed.append(f"{number.name} at {moment:.2f}")
            hit = self._hit(case, done, number, moment * seconds)
            tally.counts["kills" if hit else "ended before its kill"] += 1
            tally.counts[f"ends: {case.name}"] += hit
            done.wait()
            what = f"trial {tally.next}, {case.name}, {'; '.join(killed)}: {done.status}"
            for kind in self._after(case, done, place, hit):
                tally.problem(f"{case.name}: {kind}", f"{what} {runs.last_lines(done.printed)}")
            for file in place.rglob("*"):
                with suppress(OSError):
                    if file.is_relative_to(place / "tmp") or file.is_relative_to(place / "cache"):
                        os.utime(file, (time.time() - AGE,) * 2, follow_symlinks=False)
            if not hit:
                break
        if not hit and any(done.status.values()):
            return
        if case.once and not runs.differences(expected, case.content(place)):
            for out in expected:  # what is there already stays as it is
                (place / out).unlink()
        done = self.start(case, place, "again").wait()
        if any(done.status.values()):
            kinds = ["does not end well after a kill"]
        else:
            different = runs.differences(expected, case.content(place))
            kinds = [f"other bytes in {', '.join(different[:2])}"] if different else []
            kinds += [f"{name} is left" for name in sorted(set(_left(place)))]
        kept = self.folder / f"wrong-{tally.next}"
        for kind in kinds:
            what = f"trial {tally.next}, {case.name}, {'; '.join(killed)}: {done.status}"
            tally.problem(f"{case.name}: {kind}", f"{what} {runs.last_lines(done.printed)}")
        if kinds:
            shutil.rmtree(kept, ignore_errors=True)
            place.rename(kept)

    def _hit(self, case: Case, done: template.Forked, number: int, wait: float) -> bool:
        """Send a signal at a moment; return whether what it is sent to was still there."""
        if done.wait_until(done.began + wait):
            return False
        if not case.child:
            done.send(number)
            return True
        while not done.poll() and time.monotonic() < done.began + template.PATIENCE:
            if children := _children(done.pids[0]):
                with suppress(ProcessLookupError):
                    os.kill(children[-1], number)
                    return True
            time.sleep(0.005)
        return False

    def _after(self, case: Case, done: template.Forked, place: Path, hit: bool) -> Iterator[str]:
        """Yield the problems that a kill has left."""
        if done.hung:
            yield "hangs after a kill"
        # the watched command is the user's own, and Python's words on Ctrl-C are its own too
        if not case.stays and (name := template.traceback_in(done.printed)):
            yield f"a traceback of {name}"
        if hit and case.fails and any(status not in (0, 1, 2) for status in done.status.values()):
            yield "ends without a status of its own"
        deadline = time.monotonic() + GONE
        while (alive := _processes_in(place)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid, words in alive.items():
            if not case.stays:
                yield f"{words} stays alive"
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def keep_caches(folder: Path) -> None:
    """Have this process keep each audit, and copy each Parquet file, in a folder."""
    os.environ["XDG_CACHE_HOME"] = str(folder)
    audit_cache.WORTH, audit_cache.FEWEST_ROWS = 0.0, 1
    parquet.LARGEST_GROUP = 1


def _children(parent: int) -> list[int]:
    """Return the data workers of a process: its children that are Python's, forked by it."""
    try:
        listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        own = Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return []
    found = []
    for child in map(int, listed):
        with suppress(OSError):
            if Path(f"/proc/{child}/cmdline").read_bytes() == own:
                found.append(child)
    return found


def _processes_in(place: Path) -> dict[int, str]:
    """Return the processes whose directory is a folder, with their first words; not our zombies."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if Path(os.readlink(entry / "cwd")).is_relative_to(place):
                    program, *words = (entry / "cmdline").read_text(errors="replace").split("\0")
                    named = " ".join([Path(program).name, *words[:2]])  # no path of a machine
                    found[int(entry.name)] = named[:60]
    return found


def _left(place: Path) -> Iterator[str]:
    """Yield the kinds of temporary files that are in a folder."""
    for file in place.rglob("*"):
        if found := _LEFT.search(file.name):
            yield f"{file.parent.name}/{found[0]}"
