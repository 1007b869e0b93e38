"""Traces in Chrome's Trace Event Format, read and written event by event.

A trace can be much larger than the free memory. Format: "Trace Event Format", the document of
Chromium's Trace Viewer. torch writes it as one object with `traceEvents` last.
"""

import gzip
import json
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from vtool.models.by_lengths import ATTENTION_FLOPS
from vtool.profiling.files import written_whole
from vtool.profiling.flops import attention_flops
from vtool.profiling.step_timer import SPAN_COLORS

TraceEvent = dict[str, Any]
_BLOCK = 1 << 20
_EVENTS = '"traceEvents": ['
_STEP = re.compile(r"ProfilerStep#(\d+)")
# Attention that is one operation. torch counts the matrix products of all others, and none of
# these. Attention by lengths is marked with its FLOPs, which no shape says.
_ATTENTION = re.compile(
    r"aten::_scaled_dot_product_(flash|efficient|cudnn)_attention(_for_cpu)?(_backward)?"
)


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """The facts about a trace that checks and the summary need."""

    steps: tuple[int, ...]
    device_events: int
    """Operations of a device other than the CPU."""
    attention_flops: int
    memory: tuple[tuple[float, float], ...]
    """Seconds since the recording began, and bytes allocated beyond those of that moment."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A compressed trace that has been written."""

    facts: TraceFacts
    kept: int
    left_out: int
    """Operations that were left out, the shortest ones, to limit its size."""


def read_trace(file: IO[str]) -> Generator[TraceEvent, None, TraceEvent]:
    """Yield the events of a trace one by one; return what the object holds besides them.

    Raises:
        ValueError: it is not JSON, or not a trace.
    """
    text, decoder = "", json.JSONDecoder()
    while (begin := text.find(_EVENTS)) < 0:
        if not (block := file.read(_BLOCK)):
            raise ValueError("there is no traceEvents in it")
        text += block
    head, place, text = text[: begin + len(_EVENTS)], 0, text[begin + len(_EVENTS) :]
    while True:
        place = _after_space(text, place)
        if text[place : place + 1] == "]":
            break
        try:
            if text[place : place + 1] == ",":
                place = _after_space(text, place + 1)
            event, after = decoder.raw_decode(text, place)
        except ValueError as error:
            if not (block := file.read(_BLOCK)):
                raise ValueError(f"it ends in the middle, or is not JSON: {error}") from error
            text, place = text[place:] + block, 0
            continue
        if not isinstance(event, dict) or "ph" not in event:
            raise ValueError("an entry of traceEvents is no event")
        yield event
        place = after
        if place > _BLOCK:
            text, place = text[place:], 0
    rest = json.loads(head + text[place:] + file.read())
    return cast(TraceEvent, {key: value for key, value in rest.items() if key != "traceEvents"})


def _after_space(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place


def write_trace(
    source: Path, target: Path, device: str, steps: Sequence[int], max_mb: float | None
) -> Packed:
    """Write a trace of torch's compressed, with these steps and colored spans.

    Where it would be larger than `max_mb` on the disk, the shortest operations are left out until
    it fits; names, steps and spans stay.

    Raises:
        ValueError: what torch wrote is not a trace.
        OSError: it cannot be written.
    """
    # Stopped between two steps, torch has begun the next one.
    names = {f"ProfilerStep#{step}" for step in steps}
    scan = TraceScan(device)
    durations, kept_all = _write(source, target, partial(_is_of, names), scan.add)
    kept, count = kept_all, len(durations)
    while max_mb is not None and (size := target.stat().st_size) > max_mb * 10**6 and count:
        count = int(count * min(0.9, 0.9 * max_mb * 10**6 / size))
        shortest = sorted(durations, reverse=True)[count - 1] if count else float("inf")
        _, kept = _write(source, target, partial(_lasts, names, shortest))
    return Packed(scan.facts(), kept, kept_all - kept)


def _write(
    source: Path,
    target: Path,
    keep: Callable[[TraceEvent], bool],
    at: Callable[[TraceEvent], None] | None = None,
) -> tuple[list[float], int]:
    """Copy the events that `keep` accepts; call `at` with each event.

    Returns:
        The durations of all operations, and how many events were kept.
    """
    durations, kept = [], 0
    with (
        source.open(errors="replace") as file,
        written_whole(target) as path,
        gzip.open(path, "wt", compresslevel=4, encoding="utf-8") as out,
    ):
        events = read_trace(file)
        out.write('{"traceEvents": [')
        while True:
            try:
                event = next(events)
            except StopIteration as ended:
                head = ended.value
                break
            if at is not None:
                at(event)
            if _is_operation(event):
                durations.append(event["dur"])
            if keep(event):
                color = SPAN_COLORS.get(event.get("name", ""))
                if color and event.get("cat") == "user_annotation":
                    event["cname"] = color
                out.write((",\n" if kept else "\n") + json.dumps(event))
                kept += 1
        out.write(
            "\n]"
            + "".join(f", {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
            + "}\n"
        )
    return durations, kept


def _is_of(names: set[str], event: TraceEvent) -> bool:
    return not _STEP.fullmatch(str(event.get("name", ""))) or event["name"] in names


def _lasts(names: set[str], shortest: float, event: TraceEvent) -> bool:
    return _is_of(names, event) and (
        _stays(event) or (_is_operation(event) and event["dur"] >= shortest)
    )


def _stays(event: TraceEvent) -> bool:
    return event["ph"] == "M" or event.get("cat") in ("user_annotation", "gpu_user_annotation")


def _is_operation(event: TraceEvent) -> bool:
    return event["ph"] == "X" and not _stays(event) and isinstance(event.get("dur"), int | float)


class TraceScan:
    """Collects the facts about a trace, event by event.

    Args:
        device: the type of the device whose memory is followed.
    """

    def __init__(self, device: str) -> None:
        self._steps: set[int] = set()
        self._on_device = self._flops = 0
        self._memory: list[tuple[float, float]] = []
        self._wanted = {"cpu": 0, "cuda": 1}.get(device)

    def add(self, event: TraceEvent) -> None:
        """Take in an event."""
        name, category = str(event.get("name", "")), event.get("cat")
        if category == "user_annotation":
            if found := _STEP.fullmatch(name):
                self._steps.add(int(found[1]))
            elif name.startswith(ATTENTION_FLOPS):
                self._flops += int(name.removeprefix(ATTENTION_FLOPS))
        elif category == "kernel":
            self._on_device += 1
        elif category == "cpu_op" and (found := _ATTENTION.fullmatch(name)):
            self._flops += attention_flops(
                event["args"].get("Input Dims", ()), backward=bool(found[3])
            )
        elif name == "[memory]" and event["args"].get("Device Type") == self._wanted:
            self._memory.append((event["ts"], event["args"]["Total Allocated"]))

    def facts(self) -> TraceFacts:
        """Return the facts about the events so far."""
        self._memory.sort()
        start = self._memory[0][0] if self._memory else 0.0
        memory = [(round((ts - start) / 1e6, 6), value) for ts, value in self._memory]
        return TraceFacts(
            tuple(sorted(self._steps)), self._on_device, self._flops, highest_points(memory)
        )


def highest_points(
    points: Sequence[tuple[float, float]], most: int = 400
) -> tuple[tuple[float, float], ...]:
    """Return at most `most` points, the highest of each stretch, so that no peak is lost."""
    stretch = max(1, -(-len(points) // most))
    return tuple(
        max(points[start : start + stretch], key=lambda point: point[1])
        for start in range(0, len(points), stretch)
    )


def check_trace(path: Path, steps: Sequence[int], device: str) -> str | None:
    """Return the problem of a written trace.

    None where it parses and has all steps and, of a CUDA device, its work.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            scan = TraceScan(device)
            for event in read_trace(file):
                scan.add(event)
        facts = scan.facts()
    except (OSError, ValueError, EOFError) as error:
        return f"it does not parse: {error}"
    if missing := [str(step) for step in steps if step not in facts.steps]:
        return f"it has no step {', '.join(missing)}"
    if device == "cuda" and not facts.device_events:
        return (
            "it has nothing of the device; CUPTI may be held by another profiler, or be closed to"
            " this user"
        )
    return None
