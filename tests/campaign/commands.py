"""Damaged input through commands: their exit status, output, time and memory, and what they say.

A file is damaged as `fuzz` damages it, and a command is given it, forked from a process that has
imported everything. It ends with 0, 1 or 2, without a traceback, in 20 seconds of processor time
and 2 GiB of memory; JSON stays JSON; and it does not end with 0 where an oracle refuses the file.
"""

import importlib
import json
import os
import pkgutil
import resource
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import vtool
from tests.campaign import files, fuzz, runs, template
from tests.campaign.state import Tally
from tests.campaign.targets import Target
from tests.rows import chat, write_rows
from vtool.models.processor import load_processor

SECONDS = 20.0
"""Processor time of a command and the processes that it has waited for."""
WALL = 90.0
"""Seconds after which a command is ended: the machine may have other work."""
MOST = 2 * 2**30
"""Bytes in memory of its largest process, with what it shares with its parent."""
_SEPARATE = (
    "probe",
    "inject",
    "vllm_worker",
    "template_child",
    "recipe_child",
    "recompute_process",
    "npu",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A command, and the target whose file is damaged."""

    target: str
    words: tuple[str, ...]
    formats: bool = True
    oracle: bool = True
    """False where the command need not read the file to its end, or may do without it."""
    weight: int = 1

    def judges(self) -> Target:
        return fuzz.TARGETS[self.target]


_ROWS = ("Parquet", "Arrow", "JSON array", "tar", "rows", "rows of LLaVA")
_MODEL = ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json")
_OF_MODEL = ("verify", "shown.jsonl", "model.path=model", "--fresh")
CASES = (
    *(Case(name, ("verify", fuzz.TARGETS[name].file, "--fresh"), weight=4) for name in _ROWS),
    *(Case(name, ("convert", fuzz.TARGETS[name].file, "out.jsonl"), weight=3) for name in _ROWS),
    Case("picture", ("verify", "pictured.jsonl", "--fresh"), weight=4),
    Case("video", ("verify", "filmed.jsonl", "--fresh"), weight=2),
    *(Case(name, _OF_MODEL, weight=3) for name in _MODEL),
    Case("model", (*_OF_MODEL[:2], "model.path=model", "--fresh"), oracle=False, weight=2),
    *(Case(name, ("load-check", "."), weight=2) for name in ("index", "config.json")),
    Case("header", ("load-check", "one"), weight=4),
    Case("adapter_config.json", ("load-check", "adapter"), weight=2),
    Case("recipe", ("validate-config", "fuzz.yaml"), weight=3),
    Case("recipe", ("validate-config", "fuzz.yaml", "--untrusted"), weight=3),
    Case("recipe", ("validate-config", "fuzz.yaml", "--show"), formats=False, weight=2),
    Case("recipe", ("explain", "fuzz.yaml"), formats=False, oracle=False, weight=3),
    Case("recipe", ("plan", "fuzz.yaml", "--tokens", "64", "--memory", "8"), weight=2),
    Case("model", ("plan", "digits", "model.path=model", "--tokens", "64"), oracle=False, weight=2),
    Case("result.json", ("report", "run"), formats=False, oracle=False, weight=4),
    Case("metrics", ("report", "run"), formats=False, oracle=False, weight=3),
    Case("a long tail", ("verify", ""), oracle=False),
)
_WEIGHTED = [case for case in CASES for _ in range(case.weight)]
_FORMATS = ("json", "json", "sarif", "github", "concise", "full")


def damage_commands(tally: Tally, folder: Path, until: float) -> None:
    """Give commands damaged files until a moment."""
    place = _place(folder)
    while time.monotonic() < until:
        trial(tally, place)
        tally.next += 1


@cache
def _place(folder: Path) -> Path:
    """Write what is in the folder of the inputs, and import what the commands import."""
    place = runs.fresh(folder)
    fuzz.prepare(place)
    shown = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What is this?"}]
    write_rows(place / "shown.jsonl", [chat(shown, "yes"), chat("What is this?", "no")])
    for name, part, file in (
        ("pictured", "image", fuzz.TARGETS["picture"].file),
        ("filmed", "video", fuzz.TARGETS["video"].file),
    ):
        content = [{"type": part, part: file}, {"type": "text", "text": "?"}]
        write_rows(place / f"{name}.jsonl", [chat(content, "yes")])
    for module in pkgutil.walk_packages(vtool.__path__, "vtool."):
        if not any(word in module.name for word in (*_SEPARATE, "__main__")):
            with suppress(ImportError):
                importlib.import_module(module.name)
    load_processor(place / "model", "qwen2_5_vl")
    return place


def trial(tally: Tally, place: Path) -> None:
    """Damage a file, run a command, and judge its end."""
    number, draw = tally.next, tally.draw(tally.next)
    case = draw.choice(_WEIGHTED)
    target, words = case.judges(), [*case.words]
    if case.target == "a long tail":
        name = draw.choice([name for name in files.TARGETS if name in _ROWS])
        target = fuzz.TARGETS[name]
        words[1] = target.file
        content = draw.choice(files.SEEDS[name])
    else:
        content = target.input(draw)
        while len(content) > files.BOMB and case.target == "Parquet":  # a gigabyte of real rows
            content = target.input(draw)
    file = place / target.file
    kept = file.read_bytes() if file.exists() else None
    file.write_bytes(content)
    machine = None
    if case.formats:
        machine = draw.choice(_FORMATS)
        words += ["--format", machine]
    try:
        if case.target == "a long tail":
            os.truncate(file, files.TAIL)
        reason = target.refusal(file) if case.oracle else None
        end = _run(words, place)
    finally:
        if kept is None:
            file.unlink()
        else:
            file.write_bytes(kept)
        for left in ("out.jsonl", "run/report.html"):
            (place / left).unlink(missing_ok=True)
    command = case.words[0]
    tally.counts["commands"] += 1
    tally.counts[f"commands: {command}"] += 1
    tally.counts[f"{command}: {end.status}"] += 1
    tally.measured["most seconds"] = max(tally.measured.get("most seconds", 0.0), end.seconds)
    tally.measured["most MiB"] = max(tally.measured.get("most MiB", 0), end.memory >> 20)
    for kind in problems(end, machine, reason):
        shown = f"{content[:120]!r} {runs.last_lines(end.printed, 3)}"
        tally.problem(f"{command}, {case.target}: {kind}", f"trial {number}, {words}: {shown}")


@dataclass(frozen=True, slots=True)
class End:
    """The end of a command."""

    status: int
    seconds: float
    memory: int
    output: str
    """The standard output alone."""
    printed: str
    in_time: bool = True


def problems(end: End, machine: str | None, reason: str | None) -> list[str]:
    """Return the problems of an end, where an oracle has a reason to refuse, or None."""
    found = []
    if end.status not in (0, 1, 2):
        found.append(f"ends with {end.status}")
    if name := template.traceback_in(end.printed):
        found.append(f"a traceback of {name}")
    if end.seconds > SECONDS or not end.in_time:
        found.append(f"more than {SECONDS:.0f} seconds")
    if end.memory > MOST:
        found.append("more than 2 GiB")
    if machine in ("json", "sarif"):
        try:
            json.loads(end.output)
        except ValueError:
            found.append(f"its {machine} is none")
    if reason is not None and end.status == 0:
        found.append(f"ends with 0, and an oracle says {reason.split(':')[0][:60]}")
    return found


def _run(words: list[str], place: Path) -> End:
    """Run a command; standard output has a file of its own."""
    output, log = place / "output", place / "printed"
    log.unlink(missing_ok=True)

    def prepare(rank: int) -> None:
        os.setpgid(0, 0)
        os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    began = time.monotonic()
    forked = template.fork(words, place, prepare=prepare)
    (pid,) = forked.pids
    in_time = True
    while not (ended := os.wait4(pid, os.WNOHANG))[0]:
        if time.monotonic() > began + WALL:
            in_time = False
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        time.sleep(0.005)
    _, status, used = ended
    return End(
        os.waitstatus_to_exitcode(status),
        used.ru_utime + used.ru_stime,
        used.ru_maxrss << 10,
        output.read_text(errors="replace") if output.exists() else "",
        forked.printed + output.read_text(errors="replace"),
        in_time,
    )
