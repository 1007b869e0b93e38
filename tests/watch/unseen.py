"""The facts that a check of the watch reads, and the same without a part of them.

A check that has passed must not pass again where a fact that it read is not there, where steps are
missing, or where numbers are estimated with more noise than it allows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from vtool.watch.conclusions.check import WatchCheck
from vtool.watch.facts import Facts

Path = tuple[str, ...]
"""A kind of facts, and the names of fields down to one."""


class Recorded(dict[str, Any]):
    """A fact that records which of its fields are read."""

    def __init__(self, fact: Mapping[str, Any], path: Path, reads: set[Path]) -> None:
        self.path, self.reads = path, reads
        super().__init__({name: _recorded(one, (*path, name), reads) for name, one in fact.items()})

    def _read(self, name: str) -> None:
        if dict.__contains__(self, name):
            self.reads.add((*self.path, name))

    def __getitem__(self, name: str) -> Any:
        self._read(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._read(name)
        return super().get(name, default)


def _recorded(value: Any, path: Path, reads: set[Path]) -> Any:
    if isinstance(value, Mapping):
        # names of parameters, ids of tokens: their number is no field
        if all(name.isidentifier() for name in value):
            return Recorded(value, path, reads)
        return {name: _recorded(one, path, reads) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_recorded(one, path, reads) for one in value]
    return value


def reads_of(check: WatchCheck, facts: Facts) -> set[Path]:
    """Return the fields that a check reads."""
    reads: set[Path] = set()
    lines = {
        kind: tuple(Recorded(one, (kind,), reads) for one in ones)
        for kind, ones in facts.lines.items()
    }
    processes = tuple(Recorded(one, ("process",), reads) for one in facts.processes)
    check.conclude(replace(facts, lines=lines, processes=processes))
    return reads


def changed(facts: Facts, path: Path, change: Callable[[dict[str, Any], str], None]) -> Facts:
    """Return the facts with a field of every fact of a kind changed, wherever it lies."""
    lines = dict(facts.lines)
    for kind, ones in facts.lines.items():
        if kind == path[0]:
            lines[kind] = tuple(_changed(one, path[1:], change) for one in ones)
    processes = facts.processes
    if path[0] == "process":
        processes = tuple(_changed(one, path[1:], change) for one in processes)
    return replace(facts, lines=lines, processes=processes)


def _changed(value: Any, path: Path, change: Callable[[dict[str, Any], str], None]) -> Any:
    if isinstance(value, Mapping):
        own = dict(value)
        if path[0] in own and all(name.isidentifier() for name in own):
            if len(path) == 1:
                change(own, path[0])
            else:
                own[path[0]] = _changed(own[path[0]], path[1:], change)
            return own
        return {name: _changed(one, path, change) for name, one in own.items()}
    if isinstance(value, list | tuple):
        return [_changed(one, path, change) for one in value]
    return value


def remove(fact: dict[str, Any], name: str) -> None:
    del fact[name]


def null(fact: dict[str, Any], name: str) -> None:
    fact[name] = None


def without_kind(facts: Facts, kind: str) -> Facts:
    return replace(facts, lines={name: ones for name, ones in facts.lines.items() if name != kind})


def first_steps(facts: Facts, count: int) -> Facts:
    """Return the facts that a run of fewer watched steps would have left."""
    kept = {
        kind: ones
        if kind in ("model", "skipped", "error")
        else tuple(one for one in ones if int(one["step"]) < count)
        for kind, ones in facts.lines.items()
    }
    return replace(facts, lines={kind: ones for kind, ones in kept.items() if ones})


def blurred(facts: Facts) -> Facts:
    """Return facts whose every estimate may be off by as much as it is large."""
    lines = {kind: tuple(_blur(one) for one in ones) for kind, ones in facts.lines.items()}
    return replace(facts, lines=lines)


def _blur(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _wide(one) if name == "tolerance" else 0.5 if name == "u" else _blur(one)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_blur(one) for one in value]
    return value


def _wide(value: Any) -> Any:
    return [1e3 for _ in value] if isinstance(value, list | tuple) else value and 1e3


def still_passes(check: WatchCheck, facts: Facts) -> Iterator[str]:
    """Yield each part of the facts that a check passes without."""
    if check.outcome(facts).state != "passed":
        return
    reads = reads_of(check, facts)
    for kind in sorted({path[0] for path in reads} - {"process"}):
        if check.outcome(without_kind(facts, kind)).state == "passed":
            yield f"without {kind}"
    for path in sorted(reads, key=lambda one: (len(one), one)):
        for change in (remove, null):
            if check.outcome(changed(facts, path, change)).state == "passed":
                yield f"{change.__name__} {'.'.join(path)}"
    if check.outcome(first_steps(facts, 0)).state == "passed":
        yield "of no step"
