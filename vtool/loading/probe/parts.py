"""Loads a folder's values part by part: each is made real, loaded, compared, and freed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .coverage import Place
from .errors import LoadFailed
from .facts import Item
from .headers import Entry
from .meta_watch import Source, Write
from .sources import POISON
from .state import as_bytes, as_words, compare_states
from .subject import Named

LARGEST_PART = 256 * 2**20
"""Bytes of parameters that are made real at once, where one alone does not take more."""
BLOCK = 1 << 20
"""Bytes of a file that are read and compared at once, while they are in a core's cache."""
_ELSEWHERE = "the class writes it elsewhere when it is loaded by parts"
Load = Callable[[Any, Iterable[Named]], object]


@dataclass(frozen=True, slots=True)
class Part:
    """Parameters, and every tensor of the checkpoint that goes into one of them."""

    parameters: tuple[str, ...]
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a load without values has shown of a class."""

    came_from: Mapping[str, Sequence[str]]
    """For each parameter, the tensors that go into it."""
    writes: Mapping[str, Sequence[Write] | None]
    """For each parameter its writes; None where one changes what another has written."""


@dataclass
class Compared:
    """The tensors whose values were loaded and compared, and what differed."""

    tensors: set[str] = field(default_factory=set)
    items: list[Item] = field(default_factory=list)
    why_not: dict[str, str] = field(default_factory=dict)
    """For tensors that were not compared, the reason."""


def parts_of(layout: Layout, sizes: Mapping[str, int], most: int = LARGEST_PART) -> list[Part]:
    """Return the parts to load: parameters that share a tensor together, and others as they fit.

    Args:
        sizes: the bytes of each parameter.
        most: bytes of the parameters of one part, where one alone does not take more.
    """
    groups: list[tuple[dict[str, None], dict[str, None]]] = []
    of_tensor: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for parameter, tensors in layout.came_from.items():
        if not tensors:
            continue
        joined = {id(of_tensor[name]): of_tensor[name] for name in tensors if name in of_tensor}
        group = next(iter(joined.values()), None)
        if group is None:
            groups.append(group := ({}, {}))
        for other in joined.values():
            if other is not group:
                group[0].update(other[0])
                group[1].update(other[1])
                groups = [one for one in groups if one is not other]
        group[0][parameter] = None
        group[1].update(dict.fromkeys(tensors))
        of_tensor |= dict.fromkeys(group[1], group)
    parts: list[Part] = []
    taken = most + 1
    for parameters, names in groups:
        size = sum(sizes[name] for name in parameters)
        if parts and taken + size <= most:
            last = parts[-1]
            parts[-1] = Part((*last.parameters, *parameters), (*last.tensors, *names))
            taken += size
        else:
            parts.append(Part(tuple(parameters), tuple(names)))
            taken = size
    return parts


def compare_parts(
    model: Any,
    load: Load,
    layout: Layout,
    entries: Mapping[str, Entry],
    parts: Sequence[Part],
    free: int,
) -> Compared:
    """Load every part from one buffer that is used again, and compare it with the files.

    What a class computes before it writes is compared with a load from memory that stays.

    Args:
        model: on the meta device; it is so again at the end.
        free: bytes that a part may take.
    """
    found = Compared()
    order = {name: number for number, name in enumerate(entries)}
    for part in parts:
        names = sorted(part.tensors, key=order.__getitem__)
        needed, more = _needed(model, part, names, entries)
        if needed > free:
            _leave(found, names, f"one part takes {needed >> 20:,} MiB")
            continue
        try:
            with _real(model, part.parameters):
                load(model, _one_buffer(entries, names))
                state = _tensors(model, part.parameters)
                differing = [
                    name
                    for name in part.parameters
                    if not _as_in_files(state.get(name), layout.writes[name], entries)
                ]
                if differing and needed + more <= free:
                    seen = {name: state[name] for name in differing if name in state}
                    items, elsewhere = _again(model, load, layout, entries, names, seen)
                    found.items += items
                    _leave(found, _came_from(layout, elsewhere), _ELSEWHERE)
                    differing = []
        except LoadFailed:
            raise
        except Exception as error:
            _leave(found, names, f"a part by itself does not load: {type(error).__name__}: {error}")
            continue
        twice = f"a part takes {needed + more >> 20:,} MiB to be loaded twice"
        _leave(found, _came_from(layout, differing), twice)
        found.tensors.update(name for name in names if name not in found.why_not)
    return found


def _leave(found: Compared, names: Iterable[str], reason: str) -> None:
    found.why_not.update(dict.fromkeys(names, " ".join(reason.split())[:300]))


def _again(
    model: Any,
    load: Load,
    layout: Layout,
    entries: Mapping[str, Entry],
    names: Sequence[str],
    seen: Mapping[str, Tensor],
) -> tuple[list[Item], list[str]]:
    """Load a part once more, from memory that stays.

    Returns:
        What differs, and the parameters of which the second load says nothing: it leaves them as
        they were, or writes other values than its tensors' where it only copies them.
    """
    with _real(model, tuple(seen)):
        load(model, ((name, entries[name].read()) for name in names))
        expected = {name: one for name, one in _tensors(model, seen).items() if not one.is_meta}
        elsewhere = [
            name
            for name in seen
            if name not in expected
            or bool((as_bytes(expected[name]) == POISON).all())
            or (
                _is_copied(layout.writes[name])
                and not _as_in_files(expected[name], layout.writes[name], entries)
            )
        ]
        items = [
            Item(parameter=name, tensors=tuple(layout.came_from[name]), expected=one, seen=other)
            for name, (one, other) in compare_states(expected, dict(seen)).items()
            if name not in elsewhere
        ]
    return items, elsewhere


def _came_from(layout: Layout, parameters: Iterable[str]) -> list[str]:
    return sorted({name for parameter in parameters for name in layout.came_from[parameter]})


def _is_copied(writes: Sequence[Write] | None) -> bool:
    return bool(writes) and all(write.source is not None for write in writes or ())


def _needed(
    model: Any, part: Part, names: Sequence[str], entries: Mapping[str, Entry]
) -> tuple[int, int]:
    """Return the bytes of a part with its buffer, and of a second load beside it."""
    tensors = _tensors(model, part.parameters)
    parameters = sum(tensor.nbytes for tensor in tensors.values())
    sizes = [entries[name].nbytes for name in names]
    return parameters + max(sizes), parameters + sum(sizes)


def _one_buffer(entries: Mapping[str, Entry], names: Sequence[str]) -> Iterator[Named]:
    """Yield tensors in one buffer, which holds the next one, or nothing of use, after each."""
    buffer = torch.empty(max(entries[name].nbytes for name in names), dtype=torch.uint8)
    filled = 0
    try:
        for name in names:
            entry = entries[name]
            entry.read_into(buffer)
            buffer[entry.nbytes : max(filled, entry.nbytes)].fill_(POISON)
            filled = entry.nbytes
            yield name, entry.shaped(buffer)
    finally:
        buffer[:filled].fill_(POISON)


class _real:
    """Gives parameters of a model on the meta device memory, while it lasts."""

    def __init__(self, model: Any, names: Iterable[str]) -> None:
        self.model, self.names = model, set(names)
        self.before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        made: dict[int, Any] = {}
        for path, module in self.model.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is None or f"{path}.{name}".lstrip(".") not in self.names:
                    continue
                self.before.append((module, name, parameter))
                if id(parameter) not in made:
                    made[id(parameter)] = _with_memory(parameter)
                module._parameters[name] = made[id(parameter)]

    def __exit__(self, *exception: object) -> None:
        for module, name, parameter in self.before:
            module._parameters[name] = parameter


def _with_memory(parameter: Any) -> Any:
    """Return a parameter of the same class, with the same attributes, that has memory."""
    memory = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
    memory.untyped_storage().fill_(POISON)  # type: ignore[attr-defined]
    made = torch.Tensor._make_subclass(type(parameter), memory, parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    return made


def _tensors(model: Any, names: Iterable[str]) -> dict[str, Tensor]:
    there = dict(model.named_parameters(remove_duplicate=False))
    return {name: there[name].detach() for name in names if name in there}


def _as_in_files(
    tensor: Tensor | None, writes: Sequence[Write] | None, entries: Mapping[str, Entry]
) -> bool:
    """Return whether a loaded parameter holds the files' bytes, wherever they were written."""
    if tensor is None or tensor.is_meta or writes is None:
        return False
    for write in writes:
        if write.source is None or not _is_source(tensor, write.place, write.source, entries):
            return False
    return True


def _is_source(
    tensor: Tensor, place: Place, source: Source, entries: Mapping[str, Entry]
) -> bool:
    entry = entries[source.tensor]
    into = place.view_of(tensor)
    whole = source.place.numel == entry.numel and source.place.offset == 0
    if whole and into.is_contiguous() and _is_plain(source, entry) and tensor.dtype == entry.dtype:
        return _is_file(into.reshape(-1).view(torch.uint8), entry)
    values = source.place.view_of(entry.read())
    for dtype in source.dtypes:
        values = values.to(dtype)
    values = values.to(tensor.dtype)
    return torch.equal(as_words(values), as_words(into))


def _is_plain(source: Source, entry: Entry) -> bool:
    strides, expected = source.place.strides, 1
    for size, stride in zip(reversed(source.place.sizes), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return all(dtype == entry.dtype for dtype in source.dtypes)


def _is_file(data: Tensor, entry: Entry) -> bool:
    """Compare bytes with a tensor's, block by block."""
    buffer = torch.empty(min(BLOCK, entry.nbytes), dtype=torch.uint8)
    for begin in range(0, entry.nbytes, BLOCK):
        end = min(begin + BLOCK, entry.nbytes)
        read = entry.read_into(buffer, begin, end)
        if not torch.equal(_words(read), _words(data[begin:end])):
            return False
    return True


def _words(data: Tensor) -> Tensor:
    aligned = data.numel() % 8 == 0 and data.storage_offset() % 8 == 0
    return data.view(torch.int64) if aligned else data
