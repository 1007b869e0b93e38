"""Run both sides of a case, and say what was seen."""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from timemachine.case import CASES, Case
from timemachine.environments import Environment, NotHad, make_environment

ROOT = Path(__file__).parents[1]
SECONDS = 900
"""After so many, a side is ended."""
_TRACEBACK = "Traceback (most recent call last)"
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Exit|Warning))\b.*$", re.M)
_SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Side:
    """One release of a case, and what vtool reported of it."""

    state: str
    """`ran`, `not-run`, `does-not-import` or `crashed`."""
    reason: str = ""
    """The reason why it did not run to its end."""
    exit: int | None = None
    verdict: str = ""
    findings: tuple[Mapping[str, str], ...] = ()
    """Each with `rule`, `severity` and `message`."""
    versions: Mapping[str, str] = field(default_factory=dict)
    wheels: Mapping[str, str] = field(default_factory=dict)
    """Their files, with the SHA-256 of each."""
    cpu_seconds: float = 0.0

    def counted(self, fail_on: str) -> list[Mapping[str, str]]:
        """Return the findings that count: as severe as this, or more."""
        counted = _SEVERITIES[: _SEVERITIES.index(fail_on) + 1]
        return [one for one in self.findings if one["severity"] in counted]


def outcome_of(case: Case, sides: Mapping[str, Side]) -> str:
    """Return the outcome of a case: `seen`, or how it fell short, in words."""
    for name in case.sides:
        side = sides[name]
        if side.state != "ran":
            return f"{side.state}, the {name} side: {side.reason}"
        if side.verdict == "not-run":
            message = next((one["message"] for one in side.findings), "nothing was read")
            return f"not-run, the {name} side: {message[:200]}"
    spoke = {name: [one["rule"] for one in sides[name].counted(case.fail_on)] for name in sides}
    if not spoke["unsafe"]:
        return "missed: the unsafe side has no finding that counts"
    if case.rule not in spoke["unsafe"]:
        return f"another rule: {', '.join(sorted(set(spoke['unsafe'])))}"
    if clean := spoke.get("clean"):
        return f"the clean side reports: {', '.join(sorted(set(clean)))}"
    return "seen"


def digest(case: Case) -> str:
    """Return a digest of all that a result depends on: the case, and vtool's code."""
    parts = [case.model_dump_json(), *_scripts(case.script, set()), sys.version]
    files = [*(ROOT / "timemachine").glob("*.py")]
    for kind in ("*.py", "*.json"):  # load-check's tables of classes are of JSON
        files += (ROOT / "vtool").rglob(kind)
    parts += [file.read_text("utf-8") for file in sorted(files)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _scripts(name: str, seen: set[str]) -> list[str]:
    """Return the texts of a script, and of those in its folder that it imports."""
    if not name or name in seen or not (CASES / name).is_file():
        return []
    seen.add(name)
    text = (CASES / name).read_text("utf-8")
    imported = re.findall(r"^(?:from|import) (\w+)", text, re.M)
    return [text, *(one for module in imported for one in _scripts(f"{module}.py", seen))]


def run_case(
    case: Case, cache: Path, checkouts: Mapping[str, Path] = MappingProxyType({})
) -> dict[str, Any]:
    """Run both sides; return the result of the case as it is written."""
    sides = {name: _run_side(case, name, cache, checkouts) for name in case.sides}
    return {
        "case": case.name,
        "outcome": outcome_of(case, sides),
        "sides": {name: asdict(side) for name, side in sides.items()},
    }


def _run_side(case: Case, side: str, cache: Path, checkouts: Mapping[str, Path]) -> Side:
    wheels = case.wheels
    try:
        over = ROOT / f".{wheels.over}-venv" if wheels.over else None
        environment = make_environment(cache, wheels.of(side), wheels.installed, over, checkouts)
    except NotHad as error:
        return Side("not-run", str(error))
    facts = {
        "versions": environment.versions,
        "wheels": {tree.file: tree.sha256 for tree in environment.trees},
    }
    with tempfile.TemporaryDirectory(prefix="time-machine-") as scratch:
        words = command_of(case, environment, Path(scratch))
        logs = cache / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        try:
            status, cpu, out, err = _run(words, Path(scratch), variables_of(environment))
        except OSError as error:
            return Side("not-run", f"it cannot be started: {error}", **facts)
    (logs / f"{case.name}-{side}.txt").write_text(
        f"$ {shlex.join(words)}\n{out}{err}exit {status}\n", encoding="utf-8"
    )
    trees = f"{(cache / 'trees').resolve()}/"  # of this machine: nothing for a page
    return _side(status, cpu, out.replace(trees, ""), err.replace(trees, ""), facts)


def command_of(case: Case, environment: Environment, scratch: Path) -> list[str]:
    """Return the words of a case's command, asked for JSON, for this side."""
    places = {tree.name: str(tree.folder.resolve()) for tree in environment.trees}
    places |= {"python": str(environment.python.absolute()), "script": str(CASES / case.script)}
    words = [word.format_map(places) for word in shlex.split(case.command)]
    if words[0] == "python":
        return [sys.executable, *words[1:]]
    asked = ["--format", "json"]
    if words[1] == "watch":
        asked += ["--to", str(scratch / "facts")]
    return [sys.executable, "-m", "vtool", words[1], *asked, *words[2:]]


def variables_of(environment: Environment) -> dict[str, str]:
    """Return a variable for each wheel, WHEEL_NAME: its folder, for scripts that vtool imports."""
    return {
        f"WHEEL_{re.sub(r'[^A-Z0-9]', '_', tree.name.upper())}": str(tree.folder.resolve())
        for tree in environment.trees
    }


def _run(
    words: Sequence[str], folder: Path, variables: Mapping[str, str]
) -> tuple[int, float, str, str]:
    """Run a command in a folder; return its status, its seconds of CPU, and what it printed."""
    quiet = {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_DISABLED": "true",
    }
    with (folder / "out.txt").open("w+b") as out, (folder / "err.txt").open("w+b") as err:
        process = subprocess.Popen(
            words, cwd=folder, env={**os.environ, **quiet, **variables}, stdout=out, stderr=err
        )
        ended = _wait(process)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
    return *ended, texts[0], texts[1]


def _wait(process: "subprocess.Popen[bytes]") -> tuple[int, float]:
    """Wait for a process; return its status, and the CPU seconds of it and of its children."""
    import signal
    import threading

    late = threading.Timer(SECONDS, process.send_signal, (signal.SIGTERM,))
    late.start()
    try:
        _, status, used = os.wait4(process.pid, 0)
    finally:
        late.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, round(used.ru_utime + used.ru_stime, 1)


def _side(status: int, cpu: float, out: str, err: str, facts: dict[str, Any]) -> Side:
    """Read what a command has printed."""
    facts = {**facts, "exit": status, "cpu_seconds": cpu}
    document = _document(out) or _document(err)
    if document is None or _own_status(document, status):
        raised = [one.group(0) for one in _RAISED.finditer(err[max(err.find(_TRACEBACK), 0) :])]
        if _TRACEBACK not in err:
            return Side("crashed", f"exit status {status}: {err.strip()[-200:]}", **facts)
        name = raised[-1] if raised else "a traceback"
        state = "does-not-import" if re.search(r"ImportError|ModuleNotFound", name) else "crashed"
        return Side(state, name[:200], **facts)
    findings = tuple(
        {key: str(finding[key]) for key in ("rule", "severity", "message")}
        for result in document["results"]
        for finding in result["findings"]
    )
    if lost := [one["message"] for one in findings if one["rule"] == "unusable-interpreter"]:
        return Side("does-not-import", lost[0][:200], **facts)
    verdicts = {str(result["verdict"]) for result in document["results"]}
    order = ("unsafe", "warnings", "incomplete", "clean", "not-run")
    verdict = next((one for one in order if one in verdicts), "not-run")
    return Side("ran", verdict=verdict, findings=findings, **facts)


def _own_status(document: Mapping[str, Any], status: int) -> int:
    """Return the exit status of what was run, as a document has it; not that of its findings.

    A traceback alone is no sign of a crash: a trainer may print one that it caught, and continue.
    """
    if (command := document["tool"].get("command")) == "compare":  # a script's, which has no other
        return status
    if command != "watch":
        return 0 if status in (0, 1, 2) else status
    commands = (result.get("details", {}).get("command", {}) for result in document["results"])
    return max((int(one.get("status", 0)) for one in commands), default=status)


def _document(text: str) -> dict[str, Any] | None:
    """Return the JSON document of vtool that ends what a command has printed, if there is one."""
    for line in re.finditer(r"^\{", text, re.M):
        try:
            found, _ = json.JSONDecoder().raw_decode(text[line.start() :])
        except ValueError:
            continue
        if isinstance(found, dict) and "results" in found and "tool" in found:
            return found
    return None
