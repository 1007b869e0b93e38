"""Follows quantized weights into a class: whose scale each output channel has with its weight.

Every checkpoint tensor of a format has values of its own, so that what a parameter holds says which
tensor, and which part of it, it came from. No load is watched.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from .facts import Item
from .formats import LayerTensor, WeightFormat
from .quantized import Quantized, quantized_stems
from .state import MARKS, NamedState, as_bytes, fill_with_byte, marked, named_parameters

ChannelSource = tuple[str, int]
"""A layer of the checkpoint, and the index on the dimension of output channels."""
ChannelSources = frozenset[ChannelSource]
"""Places that a value may have come from: several, where these are alike; none, where unknown."""
CheckpointLines = Sequence[ChannelSources | None]
"""The sources at each index of a parameter; None where nothing was written."""
_UNKNOWN: ChannelSources = frozenset()
NOT_A_NUMBER = 0xFF
"""The byte in scales of inputs before a load: vLLM compares a second one with what is there, and
takes it where that is no number.
"""


@dataclass(frozen=True, slots=True)
class FormatTrace:
    """The fate of a format's weights in a class."""

    items: tuple[Item, ...]
    """`place`: another weight's scale or zero point; `lost`: none."""
    weights: int
    """Quantized parameters with weights."""
    lost_sight: Mapping[str, str]
    """Parameters that could not be followed with all that belongs to them, and why."""


def trace_format(
    form: WeightFormat,
    given: Quantized,
    state: NamedState,
    parameters: Iterable[str],
    into: Mapping[str, Sequence[str]],
) -> FormatTrace:
    """Return which scales, zero points and the like are not those of the weights next to them.

    Args:
        given: what was loaded.
        state: what the class holds after one load, into what `mark_for_following` has marked.
        parameters: the names of those.
        into: for each parameter that is written when nothing is quantized, the checkpoint's tensors
            that go into it.
    """
    indexes = _Indexes(form, given)
    stems = quantized_stems({name: state[name] for name in parameters}, form)
    items: list[Item] = []
    lost_sight: dict[str, str] = {}
    for stem in stems:
        try:
            items += _follow_weight(indexes, stem, state, into.get(f"{stem}weight", ()))
        except _OutOfSight as why:
            lost_sight[stem] = str(why)
    return FormatTrace(tuple(items), len(stems), lost_sight)


def _follow_weight(
    indexes: "_Indexes", stem: str, state: NamedState, tensors: Sequence[str]
) -> list[Item]:
    """Return an item for each tensor that is misplaced in one parameter of weights.

    Args:
        tensors: those that go into it when nothing is quantized.

    Raises:
        _OutOfSight: what it holds cannot be followed.
    """
    weight = indexes.form.parts[0]
    name = f"{stem}{weight.name}"
    experts = range(len(state[name])) if state[name].dim() == 3 else (None,)
    found: dict[tuple[str, str, str | None], list[tuple[int, int | None]]] = {}
    seen: set[str] = set()
    whole = True
    for expert in experts:
        matrix = state[name] if expert is None else state[name][expert]
        channels = _by_channel(indexes.lines(weight, matrix), weight.channels or 1)
        if any(of is not None and not of for of in channels):
            raise _OutOfSight(f"{name} holds what is no weight of the checkpoint")
        seen |= {layer for of in channels if of for layer, _ in of}
        whole &= all(channels)
        if not any(channels):
            continue
        for parameter, of, there, channel in _misplaced(indexes, stem, state, expert, channels):
            found.setdefault((parameter, of, there), []).append((channel, expert))
    items = [_item(indexes, *key, places) for key, places in found.items()]
    for tensor in () if whole else tensors:
        layer = tensor.removesuffix(".weight")
        if layer in indexes.given.layers and layer not in seen:
            items.append(_item(indexes, name, f"{layer}.{weight.name}", None, ()))
    return items


def mark_for_following(model: Any, form: WeightFormat) -> None:
    """Fill every parameter with the byte by which it is known that nothing was written there."""
    fill_with_byte(model, MARKS[0])
    of_inputs = tuple(part.name for part in form.parts if part.of_input and part.needed)
    for name, tensor in named_parameters(model).items():
        if of_inputs and name.endswith(of_inputs):
            with torch.no_grad():
                tensor.untyped_storage().fill_(NOT_A_NUMBER)  # type: ignore[attr-defined]


def _mark(part: LayerTensor) -> int:
    return NOT_A_NUMBER if part.of_input and part.needed else MARKS[0]


class _OutOfSight(Exception):
    """A parameter holds what is no value of the checkpoint, or as many as fit nothing."""


class _Indexes:
    """The sources of each value of a part of a format, by its bytes.

    Args:
        given: the checkpoint.
    """

    def __init__(self, form: WeightFormat, given: Quantized) -> None:
        self.form, self.given = form, given
        self._known: dict[tuple[str, object], dict[bytes, ChannelSources]] = {}

    def size(self, part: LayerTensor, layer: str) -> int:
        return self.given.tensors[f"{layer}.{part.name}"].numel()

    def lines(self, part: LayerTensor, held: Tensor, size: int = 1) -> CheckpointLines:
        """Return the sources of what a parameter holds, along the dimension that knows more.

        Args:
            size: the elements of one tensor of a part that is of all output channels.
        """
        index = self._index(part, held)
        if part.channels is None:
            layouts = [held.reshape(-1, size)] if held.numel() % size == 0 else []
        elif held.dim() == 2:
            layouts = [held, held.t()] if part.axis == 0 else [held.t(), held]
        else:
            layouts = [held.reshape(-1, 1)]
        read = [
            [None if empty else index.get(line, _UNKNOWN) for line, empty in _lines(layout, part)]
            for layout in layouts
        ]
        return max(read, key=lambda lines: sum(map(bool, lines)), default=[_UNKNOWN])

    def _index(self, part: LayerTensor, held: Tensor) -> Mapping[bytes, ChannelSources]:
        key = part.name, held.dtype
        if key not in self._known:
            found: dict[bytes, set[ChannelSource]] = {}
            for layer in self.given.layers:
                tensor = self.given.tensors[f"{layer}.{part.name}"].to(held.dtype)
                if part.channels is None:
                    tensor = tensor.reshape(1, -1)
                elif part.axis == 1:
                    tensor = tensor.t()
                for number, (line, _) in enumerate(_lines(tensor, part)):
                    found.setdefault(line, set()).add((layer, number))
            self._known[key] = {line: frozenset(of) for line, of in found.items()}
        return self._known[key]


def _lines(tensor: Tensor, part: LayerTensor) -> Iterator[tuple[bytes, bool]]:
    """Yield the bytes of each row, and whether they are a mark: nothing was written there."""
    if not tensor.numel():
        return
    rows = tensor.contiguous()
    raw = as_bytes(rows).reshape(len(rows), -1).numpy()
    empty = marked(rows, _mark(part)).reshape(len(rows), -1).all(-1)
    for row, nothing in zip(raw, empty.tolist(), strict=True):
        yield row.tobytes(), nothing


Misplaced = tuple[str, str, str | None, int]
"""A parameter; the tensor that belongs there; the one that is there, if any; the channel."""


def _misplaced(
    indexes: _Indexes, stem: str, state: NamedState, expert: int | None, channels: CheckpointLines
) -> Iterator[Misplaced]:
    """Yield the scales and biases of one weight matrix that are not where they belong.

    Args:
        channels: the sources of its weights.

    Raises:
        _OutOfSight: what belongs to them cannot be followed.
    """
    for part in indexes.form.parts[1:]:
        name = f"{stem}{part.name}"
        held = state.get(name)
        if expert is not None and held is not None:
            held = held[expert] if held.dim() and len(held) > expert else None
        first = _layer(next(of for of in channels if of))
        if held is None:
            if part.needed:
                yield name, f"{first}.{part.name}", None, 0
        elif part.channels is not None:
            yield from _of_channels(part, name, channels, indexes.lines(part, held))
        elif part.needed:
            lines = indexes.lines(part, held, indexes.size(part, first))
            yield from _of_whole_layers(part, name, channels, lines)


def _by_channel(lines: CheckpointLines, each: int) -> CheckpointLines:
    """Return the sources of each output channel, where a line has `each` of them."""
    if each == 1:
        return lines
    return [
        None if of is None else frozenset((layer, at * each + inner) for layer, at in of)
        for of in lines
        for inner in range(each)
    ]


def _of_channels(
    part: LayerTensor, name: str, channels: CheckpointLines, lines: CheckpointLines
) -> Iterator[Misplaced]:
    """Yield the channels of which a scale, or what else a channel or a few have, is misplaced."""
    each = part.channels or 1
    if len(lines) != -(-len(channels) // each):
        raise _OutOfSight(f"{name} has {len(lines)} for {len(channels)} output channels")
    for channel, weight in enumerate(channels):
        if not weight:
            continue
        found = lines[channel // each]
        wanted = {(layer, at // each) for layer, at in weight}
        if found is None:
            yield name, f"{_layer(weight)}.{part.name}", None, channel
        elif not found:
            raise _OutOfSight(f"{name} holds what is no value of the checkpoint")
        elif wanted.isdisjoint(found):
            yield name, f"{_layer(weight)}.{part.name}", f"{_layer(found)}.{part.name}", channel


def _of_whole_layers(
    part: LayerTensor, name: str, channels: CheckpointLines, lines: CheckpointLines
) -> Iterator[Misplaced]:
    """Yield the layers of which a scale of the whole weight, or of its input, is misplaced.

    A fused parameter has one scale for each layer, in their order, or as many for a layer as it
    takes the place of.
    """
    starts: dict[str, int] = {}
    for channel, weight in enumerate(channels):
        if weight:
            starts.setdefault(_layer(weight), channel)
    if not all(channels):  # parts that have no weight need no scale
        lines = [of for of in lines if of is not None] or [None]
    if any(of is not None and not of for of in lines):
        raise _OutOfSight(f"{name} holds what is no value of the checkpoint")
    for layer, found in _paired(part, list(starts), lines):
        if found is None:
            yield name, f"{layer}.{part.name}", None, starts[layer]
        elif layer not in {of for of, _ in found}:
            yield name, f"{layer}.{part.name}", f"{_layer(found)}.{part.name}", starts[layer]


def _paired(
    part: LayerTensor, layers: Sequence[str], lines: CheckpointLines
) -> Iterator[tuple[str, ChannelSources | None]]:
    """Yield each layer with the sources of the tensor in its place.

    Raises:
        _OutOfSight: there is more than one for each layer, and they are in no order.
    """
    if len(layers) == len(lines):
        yield from zip(layers, lines, strict=True)
    elif len(lines) == 1 or part.of_input:  # an input has one scale, however often it is there
        yield from ((layer, line) for layer in layers for line in dict.fromkeys(lines))
    elif len(layers) == 1:
        yield from ((layers[0], line) for line in dict.fromkeys(lines))
    elif [key for key, _ in groupby(of and _layer(of) for of in lines)] != layers:
        raise _OutOfSight(f"{part.name} has {len(lines)} values for {len(layers)} weights")


def _layer(sources: ChannelSources) -> str:
    return min(sources)[0]


def _item(
    indexes: _Indexes,
    parameter: str,
    wanted: str,
    seen: str | None,
    places: Sequence[tuple[int, int | None]],
) -> Item:
    """Return the item of one tensor that is not where it belongs.

    Args:
        places: the output channels, each with its expert.
    """
    where = ""
    if channels := [channel for channel, _ in places]:
        first, last = min(channels), max(channels)
        where = f" for output channels {first} to {last}" if last > first else ""
    if experts := sorted({expert for _, expert in places if expert is not None}):
        where += f" of expert {', '.join(map(str, experts[:3]))}"
    return Item(
        "lost" if seen is None else "place",
        parameter,
        (wanted,) if seen is None else (wanted, seen),
        expected=f"{wanted}{where}",
        seen=seen or "nothing that a load has written",
        rule="unwritten-parameter" if seen is None else None,
        format=indexes.form.name,
    )
