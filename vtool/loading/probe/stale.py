"""Loads from buffers that are used again: what is kept of them goes wrong, and where it is kept."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .checkpoint_files import temporary_checkpoint
from .checks import RING
from .facts import CheckFacts, Item
from .reference import ReferenceTensors
from .reference_tracer import ReferenceTracer
from .sources import ReusableBuffer, SglangMarked
from .streaming_loaders import RUNAI_ON_RANKS, RUNAI_SOURCES, STREAMING_SOURCES, runai_on_ranks
from .subject import NamedTensor

MARKED = "sglang_marked"
RAISED = "raised: "
FURTHER_SOURCES = (MARKED, *STREAMING_SOURCES, RUNAI_ON_RANKS)
"""Sources that are tried besides the ring of buffers."""
Wrong = str | list[list[str]]
"""For each rank, the parameters and buffers that come out wrong; or why the source was not run."""


def ring_of_buffers(reference: ReferenceTensors, checks: Mapping[str, CheckFacts]) -> CheckFacts:
    """Load from a ring of `slots` buffers, and from the further sources that the settings name.

    Where the ring corrupts, the facts have the smallest ring that does not, and the lines that keep
    tensors. A source that could not be run leaves the check not run, unless something was found.
    """
    items: Sequence[Item] = ()
    measured: dict[str, Any] = {"tensors": len(reference.subject.checkpoint)}
    if RING in reference.sources:
        items = _from_ring(reference, reference.slots)
        measured["slots"] = reference.slots
    others = {
        name: _from_source(reference, name) for name in reference.sources if name in FURTHER_SOURCES
    }
    if others:
        measured["sources"] = {name: _in_words(reference, wrong) for name, wrong in others.items()}
    if items:
        measured["smallest_safe_slots"] = _smallest_safe_ring(reference)
        return CheckFacts(_with_lines(reference, items), measured)
    found = tuple(
        Item(
            parameter=parameter,
            tensors=tuple(reference.came_from.get(parameter, ())),
            source=name,
        )
        for name, wrong in others.items()
        if not isinstance(wrong, str)
        for parameter in {parameter: None for names in wrong for parameter in names}
    )
    missed = [f"{name}: {wrong}" for name, wrong in others.items() if isinstance(wrong, str)]
    if missed and not found:
        return CheckFacts(reason="; ".join(missed))
    return CheckFacts(found, measured)


def _from_ring(reference: ReferenceTensors, slots: int) -> tuple[Item, ...]:
    return reference.compare(
        lambda: reference.load(ReusableBuffer(reference.subject.checkpoint, slots))
    )


def _smallest_safe_ring(reference: ReferenceTensors) -> int | None:
    """Return the fewest buffers that corrupt nothing; None where something is kept for good."""
    low, high = reference.slots, len(reference.subject.checkpoint) + 1
    if _from_ring(reference, high):
        return None
    while low + 1 < high:
        slots = (low + high) // 2
        if _from_ring(reference, slots):
            low = slots
        else:
            high = slots
    return high


def _with_lines(reference: ReferenceTensors, items: Sequence[Item]) -> tuple[Item, ...]:
    """Return the items with the lines that keep their tensors."""
    subject = reference.subject
    wanted = {name for item in items for name in item.tensors} or set(subject.checkpoint)
    tracer = ReferenceTracer(subject.checkpoint, wanted, subject.code, subject.about.file)
    model = subject.make()
    before = sys.gettrace()
    sys.settrace(tracer.trace)
    try:
        subject.load(model, tracer)
    finally:
        sys.settrace(before)

    def with_line(item: Item) -> Item:
        names = item.tensors or tracer.lines
        lines = (tracer.lines[name] for name in names if name in tracer.lines)
        file, line = next(lines, (None, None))
        return replace(item, file=file, line=line)

    return tuple(map(with_line, items))


def _from_source(reference: ReferenceTensors, name: str) -> Wrong:
    """Load from a loader that people use, on a file, or from a ring with SGLang's mark."""
    checkpoint = reference.subject.checkpoint
    if name in RUNAI_SOURCES and sum(tensor.numel() > 0 for tensor in checkpoint.values()) < 2:
        return "its buffer holds the whole checkpoint, of one tensor: nothing is overwritten"

    def wrong_tensors(source: Iterable[NamedTensor]) -> list[str]:
        items = reference.compare(lambda: reference.load(source), (ImportError,))
        raised = [f"{RAISED}{item.seen}" for item in items if item.kind == "raises"]
        return raised or [item.parameter or "" for item in items]

    with temporary_checkpoint(checkpoint) as file:
        try:
            wrong: Wrong
            if name == RUNAI_ON_RANKS:
                wrong = runai_on_ranks(wrong_tensors, file)
            elif name == MARKED:
                wrong = [wrong_tensors(SglangMarked(checkpoint, reference.slots))]
            else:
                wrong = [wrong_tensors(STREAMING_SOURCES[name](file))]
        except ImportError as error:
            return str(error)
    if isinstance(wrong, str):
        return wrong
    raised = [word for names in wrong for word in names if word.startswith(RAISED)]
    return raised[0].removeprefix(RAISED) if raised else wrong


def _in_words(reference: ReferenceTensors, wrong: Wrong) -> str:
    if isinstance(wrong, str):
        return f"not run: {wrong}"
    words = [f"{len(names)} of {len(reference.state)} tensors are wrong" for names in wrong]
    if len(words) == 1:
        return words[0]
    return ", ".join(f"rank {rank}: {word}" for rank, word in enumerate(words))
