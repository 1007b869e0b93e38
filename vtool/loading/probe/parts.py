"""Loads a folder's values part by part: each is made real, loaded, compared, and freed."""

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .coverage import MemoryView
from .errors import LoadFailed, error_text
from .facts import Item
from .headers import Entry
from .meta_watch import TensorSource, Write
from .sources import POISON
from .state import as_bytes, as_words, compare_states
from .subject import NamedTensor

LARGEST_PART = 256 * 2**20
"""Bytes of parameters that are made real at once, where one alone does not take more."""
_ELSEWHERE = "the class writes it elsewhere when it is loaded by parts"
PAGE, ALIGNED = 4096, 64
SMALL = 2**16
"""Bytes that are filled whole before a load."""
Load = Callable[[Any, Iterable[NamedTensor]], object]
LookAt = Callable[[str, Tensor], None]
_LIBC = ctypes.CDLL(None)
_LIBC.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Parameters that are loaded together, and every tensor that goes into one of them."""

    parameters: tuple[str, ...]
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorRoutes:
    """The ways of tensors into parameters, as a load without values has shown them."""

    came_from: Mapping[str, Sequence[str]]
    """For each parameter, the tensors that go into it."""
    writes: Mapping[str, Sequence[Write] | None]
    """For each parameter its writes; None where one changes what another has written."""


class ReusedMemory:
    """Memory that every part uses again: what is new has to be cleared by the kernel first."""

    def __init__(self) -> None:
        self._taken = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """Return bytes, with whatever was in them before."""
        if self._taken.numel() < size:
            self._taken = torch.empty(0, dtype=torch.uint8)  # freed before there is more
            self._taken = torch.empty(size, dtype=torch.uint8)
        return self._taken[:size]


@dataclass
class ComparedTensors:
    """The tensors whose values were loaded and compared, and what differed."""

    tensors: set[str] = field(default_factory=set)
    items: list[Item] = field(default_factory=list)
    why_not: dict[str, str] = field(default_factory=dict)
    """For tensors that were not compared, the reason."""

    def leave(self, names: Iterable[str], reason: str) -> None:
        """Note tensors that are not compared."""
        self.why_not.update(dict.fromkeys(names, reason))

    def add(self, other: "ComparedTensors") -> None:
        """Add the results of other parts to these."""
        self.tensors |= other.tensors
        self.items += other.items
        self.why_not |= other.why_not


def load_parts(
    layout: TensorRoutes, sizes: Mapping[str, int], most: int = LARGEST_PART
) -> list[LoadPart]:
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
    parts: list[LoadPart] = []
    taken = most + 1
    for parameters, names in groups:
        size = sum(sizes[name] for name in parameters)
        if parts and taken + size <= most:
            last = parts[-1]
            parts[-1] = LoadPart((*last.parameters, *parameters), (*last.tensors, *names))
            taken += size
        else:
            parts.append(LoadPart(tuple(parameters), tuple(names)))
            taken = size
    return parts


def compare_parts(
    models: Sequence[Any],
    load: Load,
    layout: TensorRoutes,
    entries: Mapping[str, Entry],
    parts: Sequence[LoadPart],
    free: int,
) -> ComparedTensors:
    """Load every part from one buffer that is used again, and compare it with what was in it.

    What a class computes before it writes is compared with a load from memory that stays.

    Args:
        models: objects on the meta device, each for a thread; they are so again at the end.
        free: bytes that all parts may take that are loaded at the same time.
    """
    share = free // len(models)
    few = [part for part in parts if _needed(models[0], part, entries)[0] <= share]
    large = [part for part in parts if _needed(models[0], part, entries)[0] > share]
    found = ComparedTensors()
    workers = [
        PartLoader(model, load, layout, entries, few[number :: len(models)], share)
        for number, model in enumerate(models)
    ]
    with ThreadPoolExecutor(len(workers)) as pool:
        for one in pool.map(PartLoader.compare, workers):
            found.add(one)
    found.add(PartLoader(models[0], load, layout, entries, large, free).compare())
    return found


@dataclass(frozen=True, slots=True)
class PartLoader:
    """Loads parts, one after the other, into one object; see `compare_parts`."""

    model: Any
    load: Load
    layout: TensorRoutes
    entries: Mapping[str, Entry]
    parts: Sequence[LoadPart]
    free: int

    def compare(self) -> ComparedTensors:
        """Load and compare every part. Raises LoadFailed: a file cannot be read."""
        found = ComparedTensors()
        memory, ring = ReusedMemory(), ReusedMemory()
        for part in self.parts:
            self._compare_part(part, memory, ring, found)
        return found

    def _compare_part(
        self, part: LoadPart, memory: ReusedMemory, ring: ReusedMemory, found: ComparedTensors
    ) -> None:
        needed, more = _needed(self.model, part, self.entries)
        names = [name for name in self.entries if name in set(part.tensors)]
        if needed > self.free:
            found.leave(names, f"one part takes {needed >> 20:,} MiB")
            return
        try:
            with RealWeights(self.model, part.parameters, memory):
                right = _Places(self.model, part, self.layout, self.entries)
                self.load(self.model, _one_buffer(self.entries, names, ring, right.look))
                state = _tensors(self.model, part.parameters)
                differing = [name for name in part.parameters if not right.holds(name, state)]
                if differing and needed + more <= self.free:
                    seen = {name: state[name] for name in differing if name in state}
                    elsewhere = self._again(names, seen, found)
                    found.leave(_came_from(self.layout, elsewhere), _ELSEWHERE)
                    differing = []
        except LoadFailed as error:
            if error.__cause__ is None or isinstance(error.__cause__, OSError):
                raise  # of a file
            found.leave(names, f"a part by itself does not load: {error}")
            return
        except Exception as error:
            found.leave(names, f"a part by itself does not load: {error_text(error)}")
            return
        twice = f"a part takes {needed + more >> 20:,} MiB to be loaded twice"
        found.leave(_came_from(self.layout, differing), twice)
        found.tensors.update(name for name in names if name not in found.why_not)

    def _again(
        self, names: Sequence[str], seen: Mapping[str, Tensor], found: ComparedTensors
    ) -> list[str]:
        """Load a part once more, from memory that stays, and add what differs.

        Returns:
            The parameters of which the second load says nothing: it leaves them as they were, or
            writes other values than its tensors' where it only copies them.
        """
        with RealWeights(self.model, tuple(seen), None):
            right = _Places(
                self.model, LoadPart(tuple(seen), tuple(names)), self.layout, self.entries
            )
            kept: list[NamedTensor] = []
            self.load(self.model, _owned(self.entries, names, kept))
            for name, buffer in kept:  # a class may collect all of them before it copies
                right.look(name, buffer)
            expected = _tensors(self.model, seen)
            elsewhere = [
                name
                for name in seen
                if name not in expected
                or expected[name].is_meta
                or bool((as_bytes(expected[name]) == POISON).all())
                or (right.is_copied(name) and not right.holds(name, expected))
            ]
            known = {name: one for name, one in expected.items() if name not in elsewhere}
            there = {name: seen[name] for name in known}
            found.items += [
                Item("differs", name, tuple(self.layout.came_from[name]), *difference)
                for name, difference in compare_states(known, there).items()
            ]
        return elsewhere


def _came_from(layout: TensorRoutes, parameters: Iterable[str]) -> list[str]:
    return sorted({name for parameter in parameters for name in layout.came_from[parameter]})


def _needed(model: Any, part: LoadPart, entries: Mapping[str, Entry]) -> tuple[int, int]:
    """Return the bytes of a part with its buffer, and of a second load at the same time."""
    tensors = _tensors(model, part.parameters)
    parameters = sum(tensor.nbytes for tensor in tensors.values())
    sizes = [entries[name].nbytes for name in part.tensors]
    return parameters + max(sizes), parameters + sum(sizes)


def _one_buffer(
    entries: Mapping[str, Entry], names: Sequence[str], ring: ReusedMemory, look: LookAt
) -> Iterator[NamedTensor]:
    """Yield tensors in one buffer, which holds the next one after each, and marks behind it.

    Args:
        look: is given each tensor when the next one is asked for, while it is still there.
    """
    buffer = ring.take(max(entries[name].nbytes for name in names))
    filled = 0
    try:
        for name in names:
            entry = entries[name]
            entry.read_into(buffer)
            _spoil(buffer[entry.nbytes : filled])
            filled = entry.nbytes
            yield name, entry.shaped(buffer)
            look(name, buffer)
    finally:
        _spoil(buffer[:filled])


def _owned(
    entries: Mapping[str, Entry], names: Sequence[str], kept: list[NamedTensor]
) -> Iterator[NamedTensor]:
    """Yield tensors in memory of their own, whose bytes are kept under their names."""
    for name in names:
        buffer = entries[name].read_into(torch.empty(entries[name].nbytes, dtype=torch.uint8))
        kept.append((name, buffer))
        yield name, entries[name].shaped(buffer)


def _spoil(buffer: Tensor) -> None:
    """Change the first and the last byte, and one of each page: what is compared is compared whole.

    To fill all of it takes as long as to load it.
    """
    if buffer.numel():
        for part in (buffer[::PAGE], buffer[-1:]):
            part.bitwise_not_()


class RealWeights:
    """Gives parameters of a model on the meta device memory, while it lasts."""

    def __init__(self, model: Any, names: Iterable[str], memory: ReusedMemory | None) -> None:
        self.model, self.names, self.memory = model, set(names), memory
        self.before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        made: dict[int, Any] = {}
        at = 0
        buffer = None if self.memory is None else self.memory.take(self._size())
        for path, module in self.model.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is None or f"{path}.{name}".lstrip(".") not in self.names:
                    continue
                self.before.append((module, name, parameter))
                if id(parameter) not in made:
                    size = parameter.nbytes
                    part = None if buffer is None else buffer[at : at + size]
                    made[id(parameter)] = _with_memory(parameter, part)
                    at += -(-size // ALIGNED) * ALIGNED
                module._parameters[name] = made[id(parameter)]

    def _size(self) -> int:
        sizes = {
            id(parameter): -(-parameter.nbytes // ALIGNED) * ALIGNED
            for name, parameter in self.model.named_parameters(remove_duplicate=False)
            if name in self.names
        }
        return sum(sizes.values())

    def __exit__(self, *exception: object) -> None:
        for module, name, parameter in self.before:
            module._parameters[name] = parameter


def _with_memory(parameter: Any, buffer: Tensor | None) -> Any:
    """Return a parameter of the same class, with the same attributes, that has memory.

    Args:
        buffer: bytes for it, in which what was loaded before must not pass for what is loaded now;
            None: they are new, and all of them `POISON`.
    """
    if buffer is None:
        buffer = torch.full((parameter.nbytes,), POISON, dtype=torch.uint8)
    elif buffer.numel() <= SMALL:
        buffer.fill_(POISON)
    else:
        _spoil(buffer)
    values = buffer.view(parameter.dtype).view(parameter.shape)
    made = torch.Tensor._make_subclass(type(parameter), values, parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    return made


def _tensors(model: Any, names: Iterable[str]) -> dict[str, Tensor]:
    there = dict(model.named_parameters(remove_duplicate=False))
    return {name: there[name].detach() for name in names if name in there}


class _Places:
    """Compares each tensor of a part with every place that it was to be copied to."""

    def __init__(
        self, model: Any, part: LoadPart, layout: TensorRoutes, entries: Mapping[str, Entry]
    ) -> None:
        self.entries = entries
        self.state = _tensors(model, part.parameters)
        self.writes: dict[str, Sequence[Write]] = {
            name: [write for write in layout.writes[name] or () if not write.constant]
            for name in part.parameters
        }
        self.of_tensor: dict[str, list[tuple[str, Write]]] = {}
        for name, writes in self.writes.items():
            for write in writes:
                if write.source:
                    self.of_tensor.setdefault(write.source.tensor, []).append((name, write))
        self.right: Counter[str] = Counter()

    def look(self, tensor: str, buffer: Tensor) -> None:
        """Compare a tensor, whose bytes a buffer begins with, with all of its places."""
        entry = self.entries[tensor]
        for parameter, write in self.of_tensor.get(tensor, ()):
            assert write.source is not None
            self.right[parameter] += _is_there(
                self.state[parameter], write.place, write.source, entry, buffer
            )

    def holds(self, parameter: str, state: Mapping[str, Tensor]) -> bool:
        """Return whether all that was copied into a parameter was there, in the same memory."""
        now, before = state.get(parameter), self.state[parameter]
        return (
            now is not None
            and self.is_copied(parameter)
            and self.right[parameter] == len(self.writes[parameter])
            and (now.data_ptr(), now.shape, now.dtype)
            == (before.data_ptr(), before.shape, before.dtype)
        )

    def is_copied(self, parameter: str) -> bool:
        """Return whether nothing is computed that is written into it."""
        writes = self.writes[parameter]
        return bool(writes) and all(write.source for write in writes)


def _is_there(
    tensor: Tensor, place: MemoryView, source: TensorSource, entry: Entry, buffer: Tensor
) -> bool:
    into = place.view_of(tensor)
    whole = source.place.numel == entry.numel and source.place.offset == 0
    if whole and into.is_contiguous() and _is_plain(source, entry) and tensor.dtype == entry.dtype:
        return not _LIBC.memcmp(into.data_ptr(), buffer.data_ptr(), entry.nbytes)
    values = source.place.view_of(entry.shaped(buffer))
    for dtype in source.dtypes:
        values = values.to(dtype)
    return torch.equal(as_words(values.to(tensor.dtype)), as_words(into))


def _is_plain(source: TensorSource, entry: Entry) -> bool:
    """Return whether a source is its tensor as it is in the file."""
    expected = 1
    for size, stride in zip(
        reversed(source.place.sizes), reversed(source.place.strides), strict=True
    ):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return all(dtype == entry.dtype for dtype in source.dtypes)
