"""Loads a subject in every way that can go wrong, and says what came of it.

Facts only: what they are worth is judged by who asked.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from .processed import snapshot_everything
from .quantized import quantized_parameters
from .reference_tracer import ReferenceTracer
from .sources import Owned, ReusableBuffer, SglangMarked, Tracked, buckets, other_values, shuffled
from .state import (
    MARKS,
    State,
    compare,
    mark,
    marked,
    named_parameters,
    named_tensors,
    same,
    snapshot,
)
from .streaming_loaders import ON_RANKS, SOURCES, runai_on_ranks, write
from .subject import LoadFailed, Named, NotRun, Subject
from .watch import Watch, loses

STREAM_ONLY = (
    "stale-reference",
    "iterator-not-exhausted",
    "retained-memory",
    "order-dependent",
    "chunk-dependent",
)
"""Checks that need a class that takes an iterator."""
OF_NAMES = ("unwritten-parameter", "partly-written-parameter", "unconsumed-tensor")
OF_QUANTIZED = (
    *OF_NAMES,
    "stale-reference",
    "aliased-parameter",
    "nondeterministic",
    "stale-after-processing",
)
"""The rules that a quantised twin is asked."""
MARKED = "sglang_marked"
OTHERS = (*SOURCES, ON_RANKS, MARKED)
"""Sources that are tried beside the ring of buffers."""
MOST_CALLS = 64
"""Tensors are loaded one a call, unless there are more than this."""
RAISED = "raised: "
Check = dict[str, Any]


def text_of(error: BaseException) -> str:
    """An exception in one line, with the last place it came through."""
    if isinstance(error, LoadFailed):
        return str(error)  # written to be read
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = (
        f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
        if trace
        else ""
    )
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{place}"


@dataclass
class Audit:
    """The loads of one subject."""

    subject: Subject
    slots: int
    sources: Sequence[str]
    reference: State = field(default_factory=dict)
    unwritten: dict[str, Tensor] = field(default_factory=dict)
    """For a parameter, the elements that no load has written."""
    came_from: dict[str, list[str]] = field(default_factory=dict)
    """For a parameter or buffer, the checkpoint tensors that went into it."""

    def load(self, source: Iterable[Named], byte: int = MARKS[0]) -> Any:
        """A new object, marked and loaded."""
        model = self.subject.make()
        mark(model, byte)
        self.subject.load(model, source)
        return model

    def unlike_reference(
        self, load: Callable[[], Any], passed_on: tuple[type[Exception], ...] = ()
    ) -> list[Check]:
        """What is other than after the first load:

        parameters and buffers, or an exception that is not `passed_on`.
        """
        try:
            seen = snapshot(load())
        except passed_on:
            raise
        except Exception as error:
            return [{"kind": "raises", "seen": text_of(error)}]
        return [
            {"kind": "differs", "parameter": name, "tensors": self.came_from.get(name, []), **found}
            for name, found in compare(self.reference, seen, self.unwritten).items()
        ]


def audit(
    subject: Subject,
    asked: Sequence[str],
    slots: int,
    sources: Sequence[str],
    progress: Callable[[str], None] = lambda stage: None,
    keep: Callable[[dict[str, Check]], None] = lambda checks: None,
) -> dict[str, Check]:
    """Run the checks asked for; for each, `items` (what was found), `measured`, or the `reason` why
    it was not run.

    Args:
        keep: is given what is known by then, before each of the checks that look further, and at
            the end.

    Raises:
        NotRun, LoadFailed: where the subject cannot be loaded rightly at all: the second where the
        checkpoint is the user's own.
    """
    it = Audit(subject, slots, sources)
    checks: dict[str, Check] = {}
    progress("first load")
    first = Owned(subject.checkpoint)
    try:
        it.reference = snapshot(it.load(first))
    except Exception as error:
        failed = f"the checkpoint does not load: {text_of(error)}"
        raise (LoadFailed if subject.origin == "given" else NotRun)(failed) from error
    progress("second load")
    checks |= _watched(it, first)
    for rule, (needs, check) in _LOADS.items():
        if rule not in asked:
            continue
        if needs and not set(needs) & set(sources):
            checks[rule] = {"reason": f"sources has no {needs[0]}"}
        elif subject.streams or rule not in STREAM_ONLY:
            progress(rule)
            checks[rule] = check(it)
    if not subject.streams:
        checks |= {rule: {"reason": "it takes a folder, not an iterator"} for rule in STREAM_ONLY}
    for rule, further in FURTHER.items():
        if rule in asked:
            keep(_of(checks, asked))
            progress(rule)
            checks[rule] = further(it, checks)
    keep(_of(checks, asked))
    return _of(checks, asked)


def _of(checks: Mapping[str, Check], asked: Sequence[str]) -> dict[str, Check]:
    return {rule: checks[rule] for rule in asked if rule in checks}


def _watched(it: Audit, first: Owned) -> dict[str, Check]:
    """The second load: marked otherwise, from tracked memory, every operation watched."""
    subject = it.subject
    source = Tracked(subject.checkpoint)
    watch = Watch(source)
    model = subject.make()
    mark(model, MARKS[1])
    if subject.streams:
        with watch:
            subject.load(model, source)
    else:
        subject.load(model, source)
    held = dict(source.held)
    seen = snapshot(model)
    tensors = named_tensors(model)
    alias = {
        name: source.addresses[_address(tensor)]
        for name, tensor in tensors.items()
        if _address(tensor) in source.addresses
    }
    it.came_from |= {name: _origins(it, name, tensor, watch) for name, tensor in tensors.items()}
    it.unwritten |= _never_reached(it.reference, seen, list(named_parameters(model)))
    if subject.streams:
        it.unwritten |= _never_reached(*_with_buffers_marked(it, model), _loaded_buffers(it, model))
    whole = {name: bool(gaps.all()) for name, gaps in it.unwritten.items()}
    chance = _never_initialised(it, seen)
    it.unwritten |= chance
    (subject.destroy or source.destroy)()
    changed = compare(seen, snapshot(model))
    suspects = (
        subject.unread(model)
        if subject.unread
        else set(source.names) - watch.read - set(alias.values())
    )
    unread = _unread(it, suspects)
    checks: dict[str, Check] = {
        "unwritten-parameter": {"items": [_never_written(name) for name in whole if whole[name]]},
        "partly-written-parameter": {
            "items": [_half_written(it, name) for name in whole if not whole[name]]
        },
        "unconsumed-tensor": {"items": [_not_consumed(it, name) for name in unread]},
        "aliased-parameter": {
            "items": [
                {"parameter": name, "tensors": it.came_from[name], **found}
                for name, found in changed.items()
            ]
        },
        "lossy-cast": {"items": _narrowed(it, watch)},
        "nondeterministic": {
            "items": (
                [
                    {"kind": "differs", "parameter": name, **found}
                    for name, found in compare(it.reference, seen, it.unwritten).items()
                ]
                + [{"kind": "chance", "parameter": name} for name in chance]
            )
        },
    }
    if subject.streams:
        kind = "early" if first.given < len(first.names) else "end"
        checks["iterator-not-exhausted"] = {
            "items": (
                [] if first.exhausted else [{"kind": kind, "tensors": first.names[first.given :]}]
            ),
            "measured": {"asked_for": first.given, "tensors": len(first.names)},
        }
        checks["retained-memory"] = {
            "items": _retained(source, held),
            "measured": {
                "most_tensors": source.most_held,
                "tensors": len(source.names),
                "most_bytes": source.most_bytes,
            },
        }
    return checks


def _origins(it: Audit, name: str, tensor: Tensor, watch: Watch) -> list[str]:
    """The checkpoint tensors that went into a parameter;

    where loads cannot be watched, the one of its name.
    """
    if it.subject.streams:
        return sorted(watch.came_from.get(_address(tensor), ()))
    return [name] if name in it.subject.checkpoint else []


def _never_initialised(it: Audit, seen: State) -> dict[str, Tensor]:
    """Elements of buffers that nothing is loaded into, and that differ from object to object:

    they hold what was in the memory.
    """
    found = {}
    for name in compare(it.reference, seen, it.unwritten):
        before, now = it.reference.get(name), seen.get(name)
        if (
            not it.came_from.get(name)
            and before is not None
            and now is not None
            and before.shape == now.shape
            and before.dtype == now.dtype
        ):
            found[name] = torch.ones(before.numel(), dtype=torch.bool)
    return found


def _loaded_buffers(it: Audit, model: Any) -> list[str]:
    """Those that something of the checkpoint goes into. The others are computed."""
    return [
        name
        for name in named_tensors(model).keys() - named_parameters(model).keys()
        if it.came_from.get(name)
    ]


def _with_buffers_marked(it: Audit, model: Any) -> tuple[State, State]:
    """Two more loads, where buffers are loaded into: these are marked as parameters are."""
    states = []
    for byte in MARKS if (names := _loaded_buffers(it, model)) else ():
        again = it.subject.make()
        mark(again, byte, names)
        it.subject.load(again, Owned(it.subject.checkpoint))
        states.append(snapshot(again))
    return (states[0], states[1]) if states else ({}, {})


def _never_reached(first: State, second: State, names: Sequence[str]) -> dict[str, Tensor]:
    """For each tensor of which some elements still have the marks of two loads: which."""
    found = {}
    for name in names:
        before, now = first.get(name), second[name]
        if before is not None and before.shape == now.shape and before.dtype == now.dtype:
            gaps = marked(before, MARKS[0])
            if gaps.any() and (gaps := gaps & marked(now, MARKS[1])).any():
                found[name] = gaps
    return found


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _never_written(name: str) -> Check:
    return {
        "parameter": name,
        "expected": "values from the checkpoint",
        "seen": "none of its elements is written",
    }


def _half_written(it: Audit, name: str) -> Check:
    gaps = it.unwritten[name]
    shape = list(it.reference[name].shape)
    missing, first = int(gaps.sum()), int(gaps.nonzero()[0])
    seen = (
        f"{missing} of {gaps.numel()} elements are not written, from element {first} on, of shape"
        f" {shape}"
    )
    return {
        "parameter": name,
        "tensors": it.came_from.get(name, []),
        "expected": "every element written",
        "seen": seen,
    }


def _unread(it: Audit, unread: set[str]) -> list[str]:
    """Of the tensors that no operation was seen to read, those whose values make no difference to
    what is loaded.
    """
    names = [name for name in it.subject.checkpoint if name in unread]
    if not names or not it.unlike_reference(
        lambda: it.load(Owned(other_values(it.subject.checkpoint, set(names))))
    ):
        return names
    if len(names) == 1:
        return []
    half = len(names) // 2
    return _unread(it, set(names[:half])) + _unread(it, set(names[half:]))


def _not_consumed(it: Audit, name: str) -> Check:
    tensor = it.subject.checkpoint[name]
    twins = [
        other
        for other, value in it.subject.checkpoint.items()
        if other != name
        and value.shape == tensor.shape
        and value.dtype == tensor.dtype
        and same(value, tensor)
    ]
    waiting = [
        parameter
        for parameter, gaps in it.unwritten.items()
        if gaps.numel() >= tensor.numel()
        and (parameter == name or parameter.endswith(f".{name}") or name.endswith(f".{parameter}"))
    ]
    return {
        "tensors": [name],
        "same_as": twins,
        "waiting": waiting,
        "seen": f"never read ({list(tensor.shape)})",
    }


def _narrowed(it: Audit, watch: Watch) -> list[Check]:
    items = []
    if not it.subject.streams:
        for name, tensor in it.subject.checkpoint.items():
            into = it.reference.get(name)
            if into is not None and loses(tensor.dtype, into.dtype):
                watch.narrowed[name] = (tensor.dtype, into.dtype)
    for name, (before, after) in watch.narrowed.items():
        parameters = [parameter for parameter, tensors in it.came_from.items() if name in tensors]
        items.append(
            {
                "parameter": parameters[0] if parameters else None,
                "tensors": [name],
                "expected": _word(before),
                "seen": _word(after),
            }
        )
    return items


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _retained(source: Tracked, held_after: Mapping[str, int]) -> list[Check]:
    """More than half of all tensors at once, where that is more than a fused weight takes;

    or still held when the load is over.
    """
    items: list[Check] = []
    if source.most_held > max(8, len(source.names) // 2):
        items.append(
            {
                "kind": "peak",
                "seen": f"{source.most_held} of {len(source.names)} tensors held at once",
            }
        )
    # The last one is often still the value of a loop's variable.
    if len(held_after) > 1:
        items.append(
            {
                "kind": "after",
                "tensors": list(held_after),
                "seen": f"{len(held_after)} tensors are held after the load",
            }
        )
    return items


def _stale(it: Audit) -> Check:
    """A ring of `slots` buffers, and further sources; where the ring corrupts, the smallest that
    does not, and the lines that keep tensors.

    A source that could not be run leaves the check not run, unless something was found anyway.
    """
    checkpoint = it.subject.checkpoint
    ring = "reusable_buffer" in it.sources
    items = (
        it.unlike_reference(lambda: it.load(ReusableBuffer(checkpoint, it.slots))) if ring else []
    )
    measured: Check = {"tensors": len(checkpoint)} | ({"slots": it.slots} if ring else {})
    others = _others(it)
    if others:
        measured["sources"] = {name: _told(it, wrong) for name, wrong in others.items()}
    if not items:
        found = [
            {
                "kind": "differs",
                "parameter": parameter,
                "tensors": it.came_from.get(parameter, []),
                "source": name,
            }
            for name, wrong in others.items()
            for parameter in (
                {name for names in wrong for name in names} if not isinstance(wrong, str) else ()
            )
        ]
        missed = [f"{name}: {wrong}" for name, wrong in others.items() if isinstance(wrong, str)]
        return (
            {"reason": "; ".join(missed)}
            if missed and not found
            else {"items": found, "measured": measured}
        )
    low, high, safe = it.slots, len(checkpoint) + 1, None
    while low + 1 < high or safe is None:
        slots = high if safe is None else (low + high) // 2
        if it.unlike_reference(lambda: it.load(ReusableBuffer(checkpoint, slots))):  # noqa: B023
            if safe is None:
                break  # even all of them at once: something is kept for good
            low = slots
        else:
            high = safe = slots
    lines = _keeping_lines(
        it, {name for item in items for name in item.get("tensors", [])} or set(checkpoint)
    )
    for item in items:
        if line := next(
            (lines[name] for name in item.get("tensors") or list(lines) if name in lines), None
        ):
            item["file"], item["line"] = line
    return {"items": items, "measured": {**measured, "smallest_safe_slots": safe}}


def _others(it: Audit) -> dict[str, str | list[list[str]]]:
    """What the further sources that the settings name make of it: loaders that people use, on a
    file, and SGLang's mark.

    For each, the parameters and buffers that come out wrong, on each of its ranks; or why it was
    not run.
    """
    found: dict[str, str | list[list[str]]] = {}
    for name in (name for name in it.sources if name in OTHERS):
        with TemporaryDirectory(prefix="vtool-") as folder:
            file = Path(folder) / "model.safetensors"
            write(it.subject.checkpoint, file)
            wrong: str | list[list[str]]
            try:
                if name == ON_RANKS:
                    wrong = runai_on_ranks(lambda source: _wrong(it, source), file, file.parent)
                elif name == MARKED:
                    wrong = [_wrong(it, SglangMarked(it.subject.checkpoint, it.slots))]
                else:
                    wrong = [_wrong(it, SOURCES[name](file))]
            except ImportError as error:
                wrong = str(error)
        raised = (
            []
            if isinstance(wrong, str)
            else [word for names in wrong for word in names if word.startswith(RAISED)]
        )
        found[name] = raised[0].removeprefix(RAISED) if raised else wrong
    return found


def _wrong(it: Audit, source: Iterable[Named]) -> list[str]:
    """The parameters and buffers that come out wrong, or an exception."""
    items = it.unlike_reference(lambda: it.load(source), (ImportError,))
    raised = [f"{RAISED}{item['seen']}" for item in items if item["kind"] == "raises"]
    return raised or [item["parameter"] for item in items]


def _told(it: Audit, wrong: str | list[list[str]]) -> str:
    if isinstance(wrong, str):
        return f"not run: {wrong}"
    words = [f"{len(names)} of {len(it.reference)} tensors are wrong" for names in wrong]
    return (
        words[0]
        if len(words) == 1
        else ", ".join(f"rank {rank}: {word}" for rank, word in enumerate(words))
    )


def _keeping_lines(it: Audit, wanted: set[str]) -> dict[str, tuple[str, int]]:
    source = ReferenceTracer(
        it.subject.checkpoint, wanted, it.subject.code, str(it.subject.about.get("file"))
    )
    model = it.subject.make()
    before = sys.gettrace()
    sys.settrace(source.trace)
    try:
        it.subject.load(model, source)
    finally:
        sys.settrace(before)
    return source.lines


def _orders(it: Audit) -> Check:
    return {
        "items": it.unlike_reference(
            lambda: _load_in_calls(it, [shuffled(list(it.subject.checkpoint))])
        )
    }


def _chunks(it: Audit) -> Check:
    """One tensor a call, which parts whatever can be parted."""
    names = list(it.subject.checkpoint)
    size = max(1, -(-len(names) // MOST_CALLS))
    return {
        "items": it.unlike_reference(lambda: _load_in_calls(it, buckets(names, size))),
        "measured": {"tensors_a_call": size},
    }


def _load_in_calls(it: Audit, calls: Sequence[Sequence[str]]) -> Any:
    model = it.subject.make()
    mark(model, MARKS[0])
    for names in calls:
        it.subject.load(model, Owned(it.subject.checkpoint, names))
    return model


def _reload(it: Audit) -> Check:
    """Loaded twice into one object, from other values first."""

    checkpoint = it.subject.checkpoint

    def load() -> Any:
        try:
            model = it.load(Owned(other_values(checkpoint)))
        except Exception:  # whole numbers may be places or sizes, of which not all are right
            model = it.load(
                Owned(
                    other_values(
                        checkpoint,
                        {name for name, tensor in checkpoint.items() if tensor.is_floating_point()},
                    )
                )
            )
        it.subject.load(model, Owned(checkpoint))
        return model

    return {"items": it.unlike_reference(load)}


_LOADS: Mapping[str, tuple[Sequence[str], Callable[[Audit], Check]]] = {
    "stale-reference": (("reusable_buffer", *OTHERS), _stale),
    "order-dependent": (("shuffled",), _orders),
    "chunk-dependent": (("bucketed",), _chunks),
    "reload-dependent": ((), _reload),
}
"""For a rule, the sources of which it needs one, and its loads."""


def _sharded(it: Audit, checks: Mapping[str, Check]) -> Check:
    shards = it.subject.shards
    return (
        shards(it.subject, it.reference)
        if shards
        else {"reason": "it is not loaded by ranks of tensor parallelism"}
    )


def _processed(it: Audit, checks: Mapping[str, Check]) -> Check:
    """From a ring of buffers, and processed:

    as from owned memory, in everything that the model holds.
    """
    process, checkpoint = it.subject.process, it.subject.checkpoint
    if process is None:
        return {"reason": "its framework does not process weights after it has loaded them"}
    if checks.get("stale-reference", {}).get("items"):
        return {"reason": "its weights are wrong already before they are processed"}

    def state(source: Owned) -> State:
        model = it.load(source)
        process(model)
        return snapshot_everything(model)

    try:
        expected = state(Owned(checkpoint))
        found = compare(expected, state(ReusableBuffer(checkpoint, it.slots)))
        if found:  # what differs between two rightful loads is not the ring's doing
            found = {
                name: how
                for name, how in found.items()
                if name not in compare(expected, state(Owned(checkpoint)))
            }
    except Exception as error:
        return {"reason": f"it cannot be processed on a CPU: {text_of(error)}"}
    items = [
        {"kind": "differs", "parameter": name, "tensors": it.came_from.get(name, []), **how}
        for name, how in found.items()
    ]
    return {"items": items, "measured": {"tensors": len(expected)}}


def _quantised(it: Audit, checks: Mapping[str, Check]) -> Check:
    """The class made for fp8 weights, asked again;

    what is not also found of it in its own dtype.
    """
    if it.subject.quantized is None:
        return {"reason": "it has no quantised twin"}
    try:
        twin = it.subject.quantized(it.came_from)
        found = audit(twin, OF_QUANTIZED, it.slots, ("reusable_buffer",))
    except Exception as error:
        return {
            "reason": (
                str(error)
                if isinstance(error, NotRun)
                else f"its quantised twin cannot be made on a CPU: {text_of(error)}"
            )
        }
    made = quantized_parameters(named_parameters(twin.make()))
    # others, as of the cache of keys and values, may be left as they are
    mine = {*made, *(f"{name}_scale" for name in made), None}
    items = [
        {**item, "how": rule}
        for rule in OF_QUANTIZED
        if rule in OF_NAMES or not checks.get(rule, {}).get("items")
        for item in found[rule].get("items", ())
        if not (
            set(_names(item))
            & {name for other in checks.get(rule, {}).get("items", ()) for name in _names(other)}
        )
        and not (rule in OF_NAMES and item.get("parameter") not in mine)
    ]
    after = found["stale-after-processing"].get("reason")
    added = len(twin.checkpoint) - len(it.subject.checkpoint)
    kept = any(item["how"] in ("stale-reference", "stale-after-processing") for item in items)
    paths = {"paths": dict(twin.paths(twin))} if kept and twin.paths else {}
    return {
        "items": items,
        "measured": {"quantised_tensors": added} | ({"not_processed": after} if after else {}),
        **paths,
    }


def _names(item: Check) -> Sequence[str]:
    return [item["parameter"]] if item.get("parameter") else item.get("tensors") or ()


FURTHER: Mapping[str, Callable[[Audit, Mapping[str, Check]], Check]] = {
    "shard-mismatch": _sharded,
    "stale-after-processing": _processed,
    "quantised-load": _quantised,
}
"""Rules that look beyond one process and the class's own dtype;

they are given what the others have found.
"""
