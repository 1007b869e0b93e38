"""Facts that the probe measures, and the JSON lines in which they travel.

The probe writes them in the subject's interpreter, and vtool reads them in its own. Both import
this file, so it needs nothing but the standard library.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

T = TypeVar("T")
CheckpointSource = Literal["given", "twin", "discovered"]
"""The source of a checkpoint.

The user; a tiny model of transformers' class; or the names that the class was found to take. Only
of the first is it certain that the class must take all of it.
"""
Status = Literal["judged", "not-run", "failed"]


class ValueDifference(NamedTuple):
    """A value that is other than expected, in words."""

    expected: str
    seen: str


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a check found: about a parameter, about checkpoint tensors, or both."""

    kind: Literal[
        "differs",
        "raises",
        "chance",
        "hash",
        "early",
        "end",
        "peak",
        "after",
        "part",
        "place",
        "lost",
        "changed",
        "transposed",
    ] = "differs"
    """The form of the problem.

    `hash`: a value that differs from process to process, as the order of sets does. `chance`: a
    buffer that differs from object to object. `early` and `end`: where a class stops
    asking for tensors. `peak` and `after`: when it holds too many of them. `part`: a tensor of
    which some elements are never read. `place` and `lost`: with a quantized weight, another's
    scale or zero point, or none. `changed`: tensors that the class changes in the loader's memory.
    `transposed`: a square matrix that a parameter has the other way round.
    """
    parameter: str | None = None
    """The parameter or buffer."""
    tensors: tuple[str, ...] = ()
    """The checkpoint's tensors."""
    expected: str | None = None
    seen: str | None = None
    source: str | None = None
    """The loader that the tensors came from, where it is not the ring of buffers."""
    rule: str | None = None
    """The check of a quantized twin that found it."""
    format: str | None = None
    """The format of the quantized twin."""
    file: str | None = None
    line: int | None = None
    """The line that keeps a tensor."""
    same_as: tuple[str, ...] = ()
    """Tensors of the checkpoint with the same values as one that is never read."""
    waiting: tuple[str, ...] = ()
    """Parameters that nothing was written into, and that fit a tensor that is never read."""
    weight_in: str | None = None
    """The parameter with the weight of a module, of which a bias is never read."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parameter, or else the tensors."""
        return (self.parameter,) if self.parameter else self.tensors


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """The result of one check: what it found, or why it was not run."""

    items: tuple[Item, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    """Counts and sizes, which reports show as they are."""
    reason: str | None = None
    """The reason why the check was not run; None where it was."""
    paths: Mapping[str, str] | None = None
    """The framework's own ways of loading a quantized twin, as in `SubjectFacts.paths`."""
    by_chance: bool = False
    """The class's threads run during the load: which tensors go wrong is chance."""


@dataclass(frozen=True, slots=True)
class About:
    """A description of the subject for the report."""

    class_name: str | None = None
    """The class with its module."""
    file: str | None = None
    line: int | None = None
    """The class's `load_weights`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The file of each checkpoint tensor, where there is more than one file."""
    own_names: bool = False
    """The checkpoint was made from the names of the object's own parameters."""
    like: str | None = None
    """transformers' class that the tiny twin is of."""
    own_twin: bool = False
    """The twin is of transformers' class of the very same name, or the one that a backend for
    transformers' classes runs; not of a related one.
    """
    added: tuple[str, ...] = ()
    """Tensors that files on the hub have, and transformers' class of the twin has not."""
    renamed: tuple[str, ...] = ()
    """Tensors of the twin that have other names than transformers gave them: they load so."""
    no_twin: str | None = None
    """The reason why there is no twin."""
    replaced: tuple[str, ...] = ()
    """Parts that do not run on a CPU and were replaced."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Config fields that were missing, and the values that they were given."""
    dtype: str | None = None
    declared_dtype: str | None = None
    """The dtype that config.json asks for."""
    served: bool = False
    """The class is the one that vLLM picks for a folder."""


@dataclass(frozen=True, slots=True)
class SubjectFacts:
    """Everything that was measured of one subject."""

    status: Status
    reason: str = ""
    """The reason why there is nothing to judge, or why not every check was reached."""
    origin: CheckpointSource = "given"
    streams: bool = True
    """The subject takes an iterator, not a folder."""
    about: About = About()
    checks: Mapping[str, CheckFacts] = field(default_factory=dict)
    """By the name of the rule."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """For each of the framework's own ways of loading: `unprotected`, `protected`, or why it was
    not run.
    """
    values: Mapping[str, Any] | None = None
    """The numbers of a folder that was loaded part by part: its `tensors`, those whose values were
    `compared`, and `not_run` with the reason why others were not.
    """


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A request to the probe: which subjects, which checks, within which limits."""

    host: str
    """`vllm`, `transformers`, `sglang` or `python`."""
    subjects: tuple[str, ...] | None
    """Their names; None for every class that the framework has registered."""
    checks: tuple[str, ...]
    sources: tuple[str, ...]
    match: str = "*"
    """With `subjects` None: a pattern that names have to fit."""
    changed_since: str | None = None
    """With `subjects` None: a git commit; only classes whose code was changed since."""
    slots: int = 1
    """Buffers of the reusable ring."""
    formats: tuple[str, ...] = ()
    """The formats of quantized twins; none: those of `audit.asked_formats`."""
    jobs: int = 1
    """Subjects at the same time."""
    seconds: float = 60.0
    memory: int = 2**31
    """Resident bytes that one subject may take."""
    by_headers: Mapping[str, float] = field(default_factory=dict)
    """Folders that are too large to be loaded whole, and the seconds that each may take."""
    parts_memory: int = 2**32
    """Resident bytes that one of `by_headers` may take."""
    checkpoint: str | None = None
    """A folder that `python` subjects are loaded from."""
    descriptor: int = -1
    """The file descriptor that events are written to."""


@dataclass(frozen=True, slots=True)
class Ready:
    """An event: the framework is imported."""

    name: str
    version: str
    torch: str
    seconds: float
    known: tuple[str, ...]
    """Every class that it has registered."""
    subjects: tuple[str, ...]
    """The names of the subjects that will be checked."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """An event: nothing can be checked in this interpreter."""

    reason: str
    asks_too_much: bool = False
    """True where what was asked for is at fault, and not the interpreter."""


@dataclass(frozen=True, slots=True)
class Finished:
    """An event: one subject has its facts."""

    subject: str
    seconds: float
    peak: int
    """Largest resident memory of its process, in bytes."""
    facts: SubjectFacts


@dataclass(frozen=True, slots=True)
class Done:
    """An event: every subject is finished."""


Event = Ready | Unusable | Finished | Done
_EVENTS: Mapping[str, type[Event]] = {
    kind.__name__.lower(): kind for kind in (Ready, Unusable, Finished, Done)
}


def facts_line(value: Any) -> str:
    """Return a dataclass of this file as one line of JSON; an event says which one it is."""
    kind = type(value).__name__.lower()
    return json.dumps(({"event": kind} if kind in _EVENTS else {}) | asdict(value), default=str)


def read_event(line: str) -> Event:
    """Read one line of the probe.

    Raises:
        ValueError: it is no event, or not of this version of vtool.
    """
    values = json.loads(line)
    kind = values.pop("event", None)
    if kind not in _EVENTS:
        raise ValueError(f"the probe sends `{kind}`, which is no event of this version of vtool")
    return _build(_EVENTS[kind], values, facts=_build_facts)


def parse_facts(text: str) -> SubjectFacts:
    """Read what `facts_line` made of facts."""
    return _build_facts(json.loads(text))


def read_probe_request(text: str) -> ProbeRequest:
    """Read what `facts_line` made of a request."""
    return _build(ProbeRequest, json.loads(text))


def _build_facts(values: Mapping[str, Any]) -> SubjectFacts:
    return _build(
        SubjectFacts,
        values,
        about=partial(_build, About),
        checks=lambda checks: {rule: _build_check(check) for rule, check in checks.items()},
    )


def _build_check(values: Mapping[str, Any]) -> CheckFacts:
    return _build(CheckFacts, values, items=lambda items: tuple(_build(Item, one) for one in items))


def _build(kind: type[T], values: Mapping[str, Any], **nested: Callable[[Any], object]) -> T:
    """Build a dataclass from parsed JSON; `nested` builds the fields that hold others.

    Raises:
        ValueError: a key is unknown or missing: the probe is of another version.
    """
    names = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    if values.keys() != names:
        differing = {"unknown": values.keys() - names, "missing": names - values.keys()}
        words = [f"{word} {', '.join(sorted(keys))}" for word, keys in differing.items() if keys]
        raise ValueError(
            f"the probe's {kind.__name__} is of another version of vtool: {'; '.join(words)}"
        )
    return kind(
        **{
            key: nested[key](value)
            if key in nested
            else tuple(value)
            if isinstance(value, list)
            else value
            for key, value in values.items()
        }
    )
