"""Reads a folder of facts (docs/watch-facts.md is their format), whatever lies in it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vtool.contents import small_file
from vtool.watch.facts import Facts
from vtool.watch.folder import FACTS
from vtool.watch.micro_pass import Fact

_FORMAT = 1
LARGEST_FACTS = 2**29
"""Bytes of a process's file of facts that are read: a thousand times what most have."""
UNENDED = "killed, a full disk, or still running"
"""The reasons for which facts may have no end."""
_NUMBERS = {"model", "rank", "index", "micro", "supervised", "world"}
"""Fields that are whole numbers where they are there."""
_NOT_READ = ("lengths", "row_of")
"""Fields of every pass that no conclusion needs."""


@dataclass(frozen=True, slots=True)
class Watched:
    """All facts of a folder: one `Facts` for each model that was trained."""

    processes: tuple[Fact, ...]
    models: tuple[Facts, ...]
    blind: tuple[str, ...]
    crashed: tuple[str, ...]
    """The exceptions with which processes ended before any step, with their places."""
    errors: tuple[str, ...]
    damaged: int = 0
    """Lines that are no facts, but for the last of a file, which a killed process may cut."""
    unended: int = 0
    """Processes whose facts have no end."""
    empty: int = 0
    """Files with no fact in them."""

    def all_read(self, steps: int) -> bool:
        """Return whether the watched steps of every model are over."""
        return bool(self.models) and all(facts.is_read_to(steps) for facts in self.models)


def read_facts(folder: Path) -> Watched:
    """Read a folder of facts.

    Raises:
        ValueError: it is not there, has no facts, or facts of another format.
    """
    if not folder.is_dir():
        there = f"{folder} is a file; facts are in a folder" if folder.exists() else None
        raise ValueError(there or f"there is no folder {folder}")
    files = sorted(folder.glob(FACTS))
    lines: list[Fact] = []
    damaged = unended = empty = 0
    for file in files:
        found, wrong = _read_file(file)
        lines += found
        damaged += wrong
        empty += not found
        unended += bool(found) and found[-1]["kind"] not in ("ended", "crashed")
    processes = tuple(line for line in lines if line["kind"] == "process")
    for process in processes:
        if process.get("format", _FORMAT) != _FORMAT:
            raise ValueError(
                f"{folder} has facts of format {process['format']}, and this vtool reads format"
                f" {_FORMAT}; read them with the vtool that wrote them"
            )
    numbers = sorted({line["model"] for line in lines if line.get("model") is not None})
    models = tuple(
        Facts(number, _by_kind(line for line in lines if line.get("model") == number), processes)
        for number in numbers
    )
    return Watched(
        processes,
        tuple(facts for facts in models if facts.of("model")),
        _reasons(lines, "blind"),
        _reasons(lines, "crashed"),
        tuple(
            f"{line.get('where')}: {line.get('error')}" for line in lines if line["kind"] == "error"
        ),
        damaged,
        unended,
        empty,
    )


def _reasons(lines: Iterable[Fact], kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(line.get("why")) for line in lines if line["kind"] == kind))


def _by_kind(lines: Iterable[Fact]) -> dict[str, tuple[Fact, ...]]:
    """Sort facts; `inputs` has those of `rows`, which a long run has many of, that hold ids."""
    kinds: dict[str, list[Fact]] = {}
    for line in lines:
        kinds.setdefault(line["kind"], []).append(line)
        if line.get("inputs"):
            kinds.setdefault("inputs", []).append(line)
    return {kind: tuple(of_kind) for kind, of_kind in kinds.items()}


def _read_file(file: Path) -> tuple[list[Fact], int]:
    found: list[Fact] = []
    wrong = 0
    try:
        texts = small_file(file, LARGEST_FACTS).decode(errors="replace").splitlines()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
            if not isinstance(line["kind"], str):
                raise TypeError
            line["step"] = int(line.get("step") or 0)
            for name in _NUMBERS & line.keys():
                line[name] = None if line[name] is None else int(line[name])
            for name in _NOT_READ:
                line.pop(name, None)
            found.append(line)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            wrong += number < len(texts)  # the last line of a killed process may be half of one
    return found, wrong
