"""Settings that a shell script gives a trainer's command, with their places."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vtool.config.foreign.given import read_given
from vtool.config.foreign.shell import UNKNOWN, ScriptPlaces, ShellWord, read_commands, read_text
from vtool.config.foreign.swift_bounds import BOUND_VARIABLES
from vtool.config.foreign.trainers import ForeignTrainer
from vtool.config.origins import ValuePosition
from vtool.config.resources import shown_path
from vtool.config.yaml_positions import read_yaml
from vtool.diagnostics import Diagnostic, Findings

PROCESSES_VARIABLE = "NPROC_PER_NODE"
"""The name under which the place of the number of processes is given."""
_PROCESSES = re.compile(r"(?i)(?:\bnproc[-_]per[-_]node|--num[-_]processes)[= ](\d+)")
_VARIABLE = re.compile(r"(?<![\w$-])([A-Z_]+)=[\"']?(\d+|\$\(\([\d\s*]+\)\))")
"""A variable that a script sets to a number, or to a product of numbers."""
_LAUNCH_FILE = re.compile(r"--config[-_]file[= ](\S+)")
"""The option by which `accelerate launch` takes its settings from a file."""


def read_script(
    path: Path, trainer: ForeignTrainer
) -> tuple[dict[str, Any], dict[str, ValuePosition], int | None]:
    """Return the settings behind `--`, where each stands, and the processes that are asked for.

    Nothing of the script is run: a value that a variable or a command gives is None.

    Raises:
        Findings: `unreadable-file`, `unknown-recipe`, fatal.
    """
    name, text = shown_path(path), read_text(path)
    place = ScriptPlaces(name, text)
    given: dict[str, Any] = {}
    places: dict[str, ValuePosition] = {}
    words = next(filter(None, (_behind(each, trainer) for each in read_commands(text))), None)
    if words is None:
        message = f"{name} does not call `{' '.join(trainer.command)}`"
        help = "give a YAML file, or a script that starts the trainer by its command"
        raise Findings(Diagnostic("unknown-recipe", message, help), fatal=True)
    start, *words = words
    if words and words[0].text.endswith((".yaml", ".yml", ".json")):
        message = f"{name} starts the trainer with the settings of {words[0].text}"
        raise Findings(Diagnostic("unknown-recipe", message, "give that file"), fatal=True)
    processes: int | None = None
    ends = place.line((words or [start])[-1].offset)
    for number, line in enumerate(text.splitlines(), 1):
        if set_to := _PROCESSES.search(line.partition(" #")[0]):
            processes = int(set_to[1])
            places[PROCESSES_VARIABLE] = place.at(number, set_to.start() + 1)
        if trainer.name == "ms-swift" and number <= ends:  # of its process
            for variable, bound, column in _variables(line):
                given[variable], places[variable] = bound, place.at(number, column + 1)
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
    given = {key: None if _is_unknown(value) else value for key, value in given.items()}
    if processes is None and (launch := _of_launch_file(text, path)):
        processes, places[PROCESSES_VARIABLE] = launch
    return given, places, processes


def _of_launch_file(text: str, script: Path) -> tuple[int, ValuePosition] | None:
    """Return the processes that accelerate's file asks for, and where; None where none are given.

    Its path is relative to the folder where the script is run: this one, or the script's own.
    """
    lines = (line.lstrip().partition("#")[0] for line in text.splitlines())
    named = next(filter(None, map(_LAUNCH_FILE.search, lines)), None)
    if named is None:
        return None
    name = named[1].strip("'\"")
    file = next(filter(Path.is_file, (Path(name), script.parent / name)), None)
    given, places = read_given(read_yaml(file)) if file else ({}, {})
    count = given.get("num_processes")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        return None
    return count, places["num_processes"]


def _variables(line: str) -> Iterator[tuple[str, int, int]]:
    """Yield the bounds that variables of a line give, with values and columns."""
    code = "" if line.lstrip().startswith("#") else line.partition(" #")[0]
    for found in _VARIABLE.finditer(code):
        if found[1] in BOUND_VARIABLES:
            factors = map(int, re.findall(r"\d+", found[2]))
            yield found[1], math.prod(factors), found.start()


def _is_unknown(value: Any) -> bool:
    """Return whether a variable or a command gives a value, which nobody has read."""
    return any(UNKNOWN in str(part) for part in (value if isinstance(value, list) else [value]))


def _behind(command: list[ShellWord], trainer: ForeignTrainer) -> list[ShellWord] | None:
    """Return the last word that starts the trainer, its command or a file of it, and the rest."""
    texts, wanted = [word.text for word in command], trainer.command
    for start, text in enumerate(texts):
        here, end = texts[start : start + len(wanted)], start + len(wanted)
        if here[0].rpartition("/")[2] == wanted[0] and tuple(here[1:]) == wanted[1:]:
            return command[end - 1 :]
        if text.rpartition("/")[2] in trainer.files:
            return command[start:]
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
