"""Settings that a shell script gives a trainer's command, with their places."""

import json
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vtool.config.foreign.given import read_given
from vtool.config.foreign.swift_bounds import BOUND_VARIABLES
from vtool.config.foreign.trainers import ForeignTrainer
from vtool.config.limits import MOST_BYTES
from vtool.config.origins import ValuePosition
from vtool.config.resources import shown_path
from vtool.config.yaml_positions import read_yaml
from vtool.diagnostics import Diagnostic, Findings, Origin

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
    name = shown_path(path)
    text = _text(path, name)
    given: dict[str, Any] = {}
    places: dict[str, ValuePosition] = {}
    processes: int | None = None
    inside = found = False
    last: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        continued = line.rstrip().endswith("\\")
        words = _words(line)
        if set_to := _PROCESSES.search(line.partition(" #")[0]):
            processes = int(set_to[1])
            places[PROCESSES_VARIABLE] = _place(name, number, set_to.start())
        if trainer.name == "ms-swift" and (inside or not found):  # of its process
            for variable, bound, column in _variables(line):
                given[variable], places[variable] = bound, _place(name, number, column)
        if not inside:
            start = _after(words, trainer)
            if found or start is None:
                continue
            inside = found = True
            words = words[start:]
            if words and words[0].endswith((".yaml", ".yml", ".json")):
                message = f"{name} starts the trainer with the settings of {words[0]}"
                raise Findings(Diagnostic("unknown-recipe", message, "give that file"), fatal=True)
        for word in words:
            if word.startswith("--"):
                key, equals, value = word[2:].partition("=")
                last = key.replace("-", "_")
                places[last] = _place(name, number, line.find(word))
                given[last] = _value(value) if equals else True
            elif last is not None:
                before = given[last]
                several = before if isinstance(before, list) else [before]
                given[last] = _value(word) if before is True else [*several, _value(word)]
        inside = continued
    given = {key: None if _of_a_variable(value) else value for key, value in given.items()}
    if not found:
        message = f"{name} does not call `{' '.join(trainer.command)}`"
        help = "give a YAML file, or a script that starts the trainer by its command"
        raise Findings(Diagnostic("unknown-recipe", message, help), fatal=True)
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


def _text(path: Path, name: str) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{name} cannot be read as text"
        raise Findings(Diagnostic("unreadable-file", message), fatal=True) from error


def _words(line: str) -> list[str]:
    """Return the words of a line of shell before its comment; `rows#100` begins none."""
    try:
        words = shlex.split(line.rstrip().removesuffix("\\"))
    except ValueError:  # a quote that is not closed, as in a comment
        words = line.split()
    of_comment = (
        place
        for place, word in enumerate(words)
        if word.startswith("#") and not re.search(rf"[\"']{re.escape(word)}", line)
    )
    return words[: next(of_comment, len(words))]


def _of_a_variable(value: Any) -> bool:
    """Return whether a variable or a command gives a value, which nobody has read."""
    parts = value if isinstance(value, list) else [value]
    return any("$" in str(part) or "`" in str(part) for part in parts)


def _after(words: list[str], trainer: ForeignTrainer) -> int | None:
    """Return the place behind what starts the trainer: its command, or a file of its own."""
    command = trainer.command
    for start, word in enumerate(words):
        here = words[start : start + len(command)]
        if here[0].rpartition("/")[2] == command[0] and tuple(here[1:]) == command[1:]:
            return start + len(command)
        if word.rpartition("/")[2] in trainer.files:
            return start + 1
    return None


def _place(name: str, number: int, column: int) -> ValuePosition:
    at = Origin(name, number, column + 1)
    return ValuePosition(at, at, "value")


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
