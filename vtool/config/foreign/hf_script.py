"""Settings that a shell script gives a trainer's command, with their places."""

import json
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vtool.config.foreign.given import read_given
from vtool.config.foreign.launch_options import AskedProcesses, LaunchOptions, read_launch_options
from vtool.config.foreign.shell import UNKNOWN, ScriptPlaces, ShellWord, read_commands, read_text
from vtool.config.foreign.swift_bounds import SWIFT_VARIABLES, meant_variable
from vtool.config.foreign.trainers import ForeignTrainer
from vtool.config.foreign.word import is_whole
from vtool.config.origins import ValuePosition
from vtool.config.resources import shown_path
from vtool.config.yaml_positions import read_yaml
from vtool.contents import open_regular
from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.diagnostics.near_miss import did_you_mean

PROCESSES_VARIABLE = "NPROC_PER_NODE"
"""The name under which the place of the number of processes is given."""
_PROCESSES = re.compile(r"(?i)(?<!-)\bnproc_per_node=[\"']?(\d+)")
_NODES = re.compile(r"(?i)(?<!-)\bnnodes=[\"']?(\d+)")
_VARIABLE = re.compile(r"(?<![\w$-])([A-Z_]+)=[\"']?(\d+(?:\.\d+)?|\$\(\([\d\s*]+\)\)|)")
"""A variable that a script sets, and its value where it is a number, or a product of numbers."""
_ALONE = re.compile(r"\s*[A-Z_]+=\S*\s*;?\s*")
"""A line that sets a variable and does nothing else."""
_LAUNCH_FILE = re.compile(r"--config[-_]file[= ](\S+)")
"""The option by which `accelerate launch` takes its settings from a file."""


def read_script(
    path: Path, trainer: ForeignTrainer
) -> tuple[dict[str, Any], dict[str, ValuePosition], AskedProcesses | None, list[Diagnostic]]:
    """Return the settings behind `--`, where each stands, the processes, and what the launcher has.

    Nothing of the script is run: a value that a variable or a command gives is None.

    Raises:
        Findings: `unreadable-file`, `unknown-recipe`, fatal.
    """
    name, text = shown_path(path), read_text(path)
    place = ScriptPlaces(name, text)
    found = next(filter(None, (split_command(each, trainer) for each in read_commands(text))), None)
    if found is None:
        message = f"{name} does not call `{' '.join(trainer.command)}`"
        help = "give a YAML file, or a script that starts the trainer by its command"
        if path.suffix == ".py":
            help += f"; vtool watch -- python {shlex.quote(name)} shows what its training teaches"
        raise Findings(Diagnostic("unknown-recipe", message, help), fatal=True)
    before, (start, *words) = found
    if words and words[0].text.endswith((".yaml", ".yml", ".json")):
        message = f"{name} starts the trainer with the settings of {words[0].text}"
        raise Findings(Diagnostic("unknown-recipe", message, "give that file"), fatal=True)
    launch = read_launch_options(before)
    ends = place.line((words or [start])[-1].offset)
    given: dict[str, Any] = {}
    places: dict[str, ValuePosition] = {}
    of_shell = False
    for one in _variables(text, ends) if trainer.name == "ms-swift" else ():
        if one.value is not None and one.exported and one.name in SWIFT_VARIABLES:
            given[one.name], places[one.name] = one.value, place.at(one.line, one.column)
        of_shell |= one.name == PROCESSES_VARIABLE and not one.exported
    _read_words(words, place, given, places)
    lines = [] if of_shell else code_lines(text, ends)
    ranks = asked_processes(lines, place, launch, places) or _of_launch_file(text, path, places)
    for name, value, word in launch.settings(given):
        given[name], places[name] = value, place.of(word)
    findings = [
        Diagnostic(rule, message, help, option, place.of(word).value)
        for rule, option, message, help, word in launch.find(given, trainer.name)
    ]
    if (gone := _named_launch_file(text)) and _launch_file(gone, path) is None:
        message = f"--config_file: {gone} is not here: how many processes it asks for, and whether"
        message += " by DeepSpeed or FSDP, is not known"
        findings.append(Diagnostic("not-on-this-machine", message, None, "config_file"))
    return given, places, ranks, findings


def _read_words(
    words: list[ShellWord],
    place: ScriptPlaces,
    given: dict[str, Any],
    places: dict[str, ValuePosition],
) -> None:
    last: str | None = None
    for word in words:
        if word.text.startswith("--"):
            key, equals, value = word.text[2:].partition("=")
            last = key.replace("-", "_")
            places[last] = place.of(word)
            given[last] = _value(value) if equals else True
        elif last is not None:
            before = given[last]
            several = before if isinstance(before, list) else [before]
            given[last] = _value(word.text) if before is True else [*several, _value(word.text)]
    given |= {key: None for key, value in given.items() if _is_unknown(value)}


def code_lines(text: str, last: int) -> list[str]:
    """Return the lines up to the last one that is read, without comments."""
    lines = text.splitlines()[:last]
    return ["" if line.lstrip().startswith("#") else line.partition(" #")[0] for line in lines]


def asked_processes(
    lines: list[str],
    place: ScriptPlaces,
    launch: LaunchOptions,
    places: dict[str, ValuePosition],
) -> AskedProcesses | None:
    """Return the processes by the launcher's options, or else by variables; None: it is not said.

    Args:
        places: gets the place of their number.
    """
    processes, nodes = None, 1
    for number, line in enumerate(lines, 1):
        if set_to := _PROCESSES.search(line):
            processes = int(set_to[1])
            places[PROCESSES_VARIABLE] = place.at(number, set_to.start() + 1)
        if set_to := _NODES.search(line):
            nodes = int(set_to[1])
    if asked := launch.processes():
        processes, places[PROCESSES_VARIABLE] = asked[0], place.of(asked[1])
    nodes = launch.nodes() or nodes
    if processes is None:
        return None
    whole = processes if launch.counts_all else processes * nodes
    return AskedProcesses(whole, min(nodes, whole))


def _of_launch_file(
    text: str, script: Path, places: dict[str, ValuePosition]
) -> AskedProcesses | None:
    """Return the processes that accelerate's file asks for; None where none are given.

    Its path is relative to the folder where the script is run: this one, or the script's own.
    """
    name = _named_launch_file(text)
    file = _launch_file(name, script) if name else None
    given, there = read_given(read_yaml(file)) if file else ({}, {})
    count, nodes = given.get("num_processes"), given.get("num_machines")
    if count is None or not is_whole(count):
        return None
    places[PROCESSES_VARIABLE] = there["num_processes"]
    return AskedProcesses(count, min(nodes, count) if nodes is not None and is_whole(nodes) else 1)


def _named_launch_file(text: str) -> str | None:
    """Return the name of accelerate's file; None where a variable gives it, or there is none."""
    lines = (line.lstrip().partition("#")[0] for line in text.splitlines())
    named = next(filter(None, map(_LAUNCH_FILE.search, lines)), None)
    name = named[1].strip("'\"") if named else ""
    return name if name and "$" not in name else None


def _launch_file(name: str, script: Path) -> Path | None:
    return next(filter(_can_be_read, (Path(name), script.parent / name)), None)


def _can_be_read(file: Path) -> bool:
    """Return whether a file is there, and not where a stranger's recipe may not look."""
    try:
        open_regular(file).close()
    except (OSError, ValueError):
        return False
    return True


class _SetVariable(NamedTuple):
    """A variable of the environment that a script sets."""

    name: str
    value: float | None
    """None where it is no number."""
    line: int
    column: int
    exported: bool
    """False where it is a variable of the shell alone, which its commands do not get."""


def _variables(text: str, last: int) -> Iterator[_SetVariable]:
    """Yield the variables that a script sets up to a line."""
    continued = False
    for number, code in enumerate(code_lines(text, last), 1):
        alone = bool(_ALONE.fullmatch(code)) and not continued
        continued = code.endswith("\\")
        for found in _VARIABLE.finditer(code):
            name = found[1]
            factors = [float(one) for one in re.findall(r"[\d.]+", found[2])]
            product = float(math.prod(factors))
            value = int(product) if product.is_integer() else product
            used = re.search(rf"\$\{{?{name}\b|\bexport\b.*\b{name}\b|set -\w*a|allexport", text)
            yield _SetVariable(
                name, value if factors else None, number, found.start() + 1, not alone or bool(used)
            )


def find_unread_variables(path: Path, ends: int) -> Iterator[Diagnostic]:
    """Yield findings about variables of a script that do not reach ms-swift.

    Args:
        ends: the line of the last setting.
    """
    name, text = shown_path(path), read_text(path)
    for one in _variables(text, ends):
        place = Origin(name, one.line, one.column)
        meant = meant_variable(one.name)
        if meant and not re.search(rf"\$\{{?{one.name}\b", text):
            message = f"{one.name} is set, and ms-swift reads no such variable"
            help = did_you_mean(meant)
        elif one.name in (*SWIFT_VARIABLES, PROCESSES_VARIABLE) and not one.exported:
            message = f"{one.name} is a variable of the shell alone: ms-swift does not get it"
            help = f"export {one.name}=…"
        else:
            continue
        yield Diagnostic("setting-without-reader", message, help, one.name, place)


def _is_unknown(value: Any) -> bool:
    """Return whether a variable or a command gives a value, which nobody has read."""
    return any(UNKNOWN in str(part) for part in (value if isinstance(value, list) else [value]))


def split_command(
    command: list[ShellWord], trainer: ForeignTrainer
) -> tuple[list[ShellWord], list[ShellWord]] | None:
    """Return the words before the last one that starts the trainer, and that one with the rest.

    It is the trainer's command, or a file of it.
    """
    texts, wanted = [word.text for word in command], trainer.command
    for start, text in enumerate(texts):
        here, end = texts[start : start + len(wanted)], start + len(wanted)
        if here[0].rpartition("/")[2] == wanted[0] and tuple(here[1:]) == wanted[1:]:
            return command[:start], command[end - 1 :]
        if text.rpartition("/")[2] in trainer.files:
            return command[:start], command[start:]
    return None


def _value(text: str) -> Any:
    """Return a word as the number or the truth that it is."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = json.loads(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
    return number if isinstance(number, int | float) else text
