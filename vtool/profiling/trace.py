"""Traces in Chrome's Trace Event Format, read and written event by event: a trace can be much
larger than what memory is left.

Format: "Trace Event Format", the document of Chromium's Trace Viewer. torch writes it as one object
with `traceEvents` last.
"""

import gzip
import json
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from vtool.profiling.files import whole
from vtool.profiling.marks import COLOURS

Event = dict[str, Any]
_BLOCK = 1 << 20
_EVENTS = '"traceEvents": ['
_STEP = re.compile(r"ProfilerStep#(\d+)")
# Attention that is one operation. torch counts the matrix products of all others, and none of
# these.
_ATTENTION = re.compile(
    r"aten::_scaled_dot_product_(flash|efficient|cudnn)_attention(_for_cpu)?(_backward)?"
)


@dataclass(frozen=True, slots=True)
class Observed:
    """What a trace holds."""

    steps: tuple[int, ...]
    roles: frozenset[str]
    device_events: int
    """Operations of a device that is no CPU."""
    attention_flops: int
    memory: tuple[tuple[float, float], ...]
    """What is allocated over what was when the recording began: seconds since then, bytes."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A trace that has been written."""

    seen: Observed
    kept: int
    left_out: int
    """Operations that are not in it, the shortest ones, for its size."""


def read_trace(file: IO[str]) -> Generator[Event, None, Event]:
    """The events of a trace one by one; returns what the object holds beside them.

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
    return cast(Event, {key: value for key, value in rest.items() if key != "traceEvents"})


def _after_space(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place


def pack(
    source: Path, target: Path, device: str, steps: Sequence[int], max_mb: float | None
) -> Packed:
    """Write a trace of torch's compressed, of these steps, with the roles in their colours, and no
    larger than `max_mb` on the disk.

    Of one that is too large the shortest operations are left out, until it fits; names, steps and
    roles stay.

    Raises:
        ValueError: what torch wrote is not a trace.
        OSError: it cannot be written.
    """
    # Stopped between two steps, torch has begun the next one.
    names = {f"ProfilerStep#{step}" for step in steps}
    look = Look(device)
    durations, kept_all = _write(source, target, partial(_is_of, names), look.at)
    kept, count = kept_all, len(durations)
    while max_mb is not None and (size := target.stat().st_size) > max_mb * 10**6 and count:
        count = int(count * min(0.9, 0.9 * max_mb * 10**6 / size))
        shortest = sorted(durations, reverse=True)[count - 1] if count else float("inf")
        _, kept = _write(source, target, partial(_lasts, names, shortest))
    return Packed(look.seen(), kept, kept_all - kept)


def _write(
    source: Path,
    target: Path,
    keep: Callable[[Event], bool],
    at: Callable[[Event], None] | None = None,
) -> tuple[list[float], int]:
    """`at` is called with each event.

    Returns the durations of the operations that were met, and how many events were kept.
    """
    durations, kept = [], 0
    with (
        source.open(errors="replace") as file,
        whole(target) as path,
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
                if (colour := COLOURS.get(event.get("name", ""))) and event.get(
                    "cat"
                ) == "user_annotation":
                    event["cname"] = colour
                out.write((",\n" if kept else "\n") + json.dumps(event))
                kept += 1
        out.write(
            "\n]"
            + "".join(f", {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
            + "}\n"
        )
    return durations, kept


def _is_of(names: set[str], event: Event) -> bool:
    return not _STEP.fullmatch(str(event.get("name", ""))) or event["name"] in names


def _lasts(names: set[str], shortest: float, event: Event) -> bool:
    return _is_of(names, event) and (
        _stays(event) or (_is_operation(event) and event["dur"] >= shortest)
    )


def _stays(event: Event) -> bool:
    return event["ph"] == "M" or event.get("cat") in ("user_annotation", "gpu_user_annotation")


def _is_operation(event: Event) -> bool:
    return event["ph"] == "X" and not _stays(event) and isinstance(event.get("dur"), int | float)


class Look:
    """Goes through a trace, event by event. `device`: of whose memory the curve is, by its type."""

    def __init__(self, device: str) -> None:
        self._steps: set[int] = set()
        self._roles: set[str] = set()
        self._on_device = self._flops = 0
        self._memory: list[tuple[float, float]] = []
        self._wanted = {"cpu": 0, "cuda": 1}.get(device)

    def at(self, event: Event) -> None:
        """Take in an event."""
        name, category = str(event.get("name", "")), event.get("cat")
        if category == "user_annotation":
            if found := _STEP.fullmatch(name):
                self._steps.add(int(found[1]))
            elif name in COLOURS:
                self._roles.add(name)
        elif category == "kernel":
            self._on_device += 1
        elif category == "cpu_op" and (found := _ATTENTION.fullmatch(name)):
            self._flops += _attention_flops(
                event["args"].get("Input Dims", ()), backward=bool(found[3])
            )
        elif name == "[memory]" and event["args"].get("Device Type") == self._wanted:
            self._memory.append((event["ts"], event["args"]["Total Allocated"]))

    def seen(self) -> Observed:
        """What was in it."""
        steps, roles = tuple(sorted(self._steps)), frozenset(self._roles)
        return Observed(steps, roles, self._on_device, self._flops, _thinned(self._memory))


def _attention_flops(dims: Sequence[Sequence[int]], *, backward: bool) -> int:
    """By torch.utils.flop_counter's formulas, from [batch, heads, length, size] of query, key and
    value.
    """
    if backward:
        gradient, query, key, value = dims[:4]
        return int(sdpa_backward_flop_count(gradient, query, key, value))  # type: ignore[no-untyped-call]
    query, key, value = dims[:3]
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _thinned(points: list[tuple[float, float]], most: int = 400) -> tuple[tuple[float, float], ...]:
    """Seconds from the first point on;

    of many points the highest of each stretch, so that no peak is lost.
    """
    points.sort()
    stretch = max(1, -(-len(points) // most))
    chosen = [
        max(points[start : start + stretch], key=lambda point: point[1])
        for start in range(0, len(points), stretch)
    ]
    return tuple((round((ts - points[0][0]) / 1e6, 6), value) for ts, value in chosen)


def check_trace(path: Path, steps: Sequence[int], device: str) -> str | None:
    """What is wrong with a trace that was written;

    None where it parses and has all steps and, of a device, its work.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            look = Look(device)
            for event in read_trace(file):
                look.at(event)
        seen = look.seen()
    except (OSError, ValueError, EOFError) as error:
        return f"it does not parse: {error}"
    if missing := [str(step) for step in steps if step not in seen.steps]:
        return f"it has no step {', '.join(missing)}"
    if device == "cuda" and not seen.device_events:
        return (
            "it has nothing of the device; CUPTI may be held by another profiler, or be closed to"
            " this user"
        )
    return None
