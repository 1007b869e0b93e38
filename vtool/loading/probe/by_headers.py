"""Judges the class of a folder that is too large to be loaded whole.

It is made on the meta device and given tensors without values, as the headers describe them; then
the values, part by part.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .checks import CHECKS
from .coverage import MemoryView, cover
from .errors import LoadFailed, NotRun, error_text
from .exchanged import exchanged
from .facts import About, CheckFacts, Item, SubjectFacts
from .headers import Entry
from .host import OnProgress
from .memory import resident_bytes
from .meta_watch import MetaSource, MetaWatch, storage_key
from .parts import LARGEST_PART, Load, TensorRoutes, compare_parts, load_parts
from .places import belongs

LARGEST_READ = 2**17
"""Elements of a tensor that is given with its values, where a load looks at values."""
_THREADS = 2
MARGIN = 96 * 2**20
"""Bytes that a part leaves free of what may be taken."""
BY_PARTS = "the folder is loaded by parts, and this asks for loads of all of it at once"


@dataclass(frozen=True, slots=True)
class LargeFolder:
    """A class of a framework's, and the folder that it is loaded from."""

    make: Callable[[], Any]
    """Makes an object of the class; the caller has chosen torch's default device."""
    load: Load
    entries: Mapping[str, Entry]
    about: About


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The watch over a load without values, what it gave, and the parameters after it."""

    watch: MetaWatch
    given: MetaSource
    parameters: Mapping[str, Tensor]


def header_facts(
    folder: LargeFolder, rules: Sequence[str], memory: int, progress: OnProgress
) -> SubjectFacts:
    """Return the facts of a folder's class, by headers, and by values where it can be.

    Args:
        rules: the checks that are asked.
        memory: resident bytes that this process may take.

    Raises:
        NotRun: the class cannot be made, or loaded, without values.
        LoadFailed: it refuses a name or a shape, or a file cannot be read.
    """
    progress("construction on the meta device")
    try:
        model = _on_meta(folder)
    except Exception as error:
        raise NotRun(f"the class cannot be made without memory: {error_text(error)}") from error
    progress("the load without values")
    before = {storage_key(one) for one in _parameters(model).values()}
    loaded = _load_without_values(folder, model)
    checks, layout = _complete(folder, loaded, before)
    values: Mapping[str, Any] | None = None
    if "stale-reference" in rules:
        progress("the values, part by part")
        checks["stale-reference"], values = _values(folder, layout, memory)
    asked = {
        rule: checks.get(rule, CheckFacts(reason=BY_PARTS))
        for rule in rules
        if rule in {check.rule for check in CHECKS}
    }
    return SubjectFacts("judged", "", "given", True, folder.about, asked, values=values)


def _on_meta(folder: LargeFolder) -> Any:
    with torch.device("meta"):
        return folder.make()


def _load_without_values(folder: LargeFolder, model: Any) -> _Loaded:
    """Load headers; a second time, into a new object, with small values, where the first fails."""
    try:
        return _load_once(folder, model, 1)
    except (RuntimeError, NotImplementedError) as error:
        if not _asks_for_values(error):
            raise _refused(error) from error
    except Exception as error:
        raise _refused(error) from error
    try:
        return _load_once(folder, _on_meta(folder), LARGEST_READ)
    except Exception as error:
        if _asks_for_values(error):
            raise NotRun(f"its load looks at values: {error_text(error)}") from error
        raise _refused(error) from error


def _load_once(folder: LargeFolder, model: Any, real_below: int) -> _Loaded:
    given = MetaSource(folder.entries, real_below)
    watch = MetaWatch(given)
    with watch:
        folder.load(model, given)
    return _Loaded(watch, given, _parameters(model))


def _asks_for_values(error: BaseException | None) -> bool:
    while error is not None:
        text = str(error).casefold()
        if "meta tensor" in text or "meta device" in text or "device meta" in text:
            return True
        error = error.__cause__
    return False


def _refused(error: Exception) -> LoadFailed:
    return (
        error
        if isinstance(error, LoadFailed)
        else LoadFailed(f"the checkpoint does not load: {error_text(error)}")
    )


def _parameters(model: Any) -> dict[str, Tensor]:
    return dict(model.named_parameters(remove_duplicate=False))


def _complete(
    folder: LargeFolder, loaded: _Loaded, before: set[int]
) -> tuple[dict[str, CheckFacts], TensorRoutes]:
    """Return the facts about names, shapes and dtypes, and where each tensor goes."""
    watch, given = loaded.watch, loaded.given
    came_from: dict[str, Sequence[str]] = {}
    writes: dict[str, Any] = {}
    gaps: dict[str, Item] = {}
    missing: dict[str, int] = {}
    aliased: set[str] = set()
    for name, parameter in loaded.parameters.items():
        key = storage_key(parameter)
        if own := given.storages.get(key):
            aliased.add(own)
            came_from[name], writes[name] = [own], None
            continue
        came_from[name] = sorted(watch.origins.get(key, ()))
        made = watch.writes.get(key, [])
        if key not in before and not made:
            writes[name] = None
            if not came_from[name]:
                missing[name] = parameter.numel()
            continue
        covered = cover(MemoryView.of(parameter), [write.place for write in made])
        plain = covered.known and not covered.overlaps and not parameter.storage_offset()
        writes[name] = made if plain else None
        if not covered.elements and covered.of:
            missing[name] = covered.of
        elif covered.first_gap is not None:
            gaps[name] = Item(
                parameter=name,
                tensors=tuple(came_from[name]),
                expected="every element written",
                seen=f"{covered.of - covered.elements} of {covered.of} elements are not written,"
                f" from element {covered.first_gap} on, of shape {list(parameter.shape)}",
            )
    # one parameter under two names is written under each
    unread = [name for name in given.entries if name not in aliased and name not in watch.read]
    waiting = missing | {name: loaded.parameters[name].numel() for name in gaps}
    unconsumed = [_unconsumed(folder, name, waiting) for name in unread]
    stopped = Item(
        "early" if given.given < len(given.entries) else "end",
        None,
        tuple(list(given.entries)[given.given :]),
    )
    found = {
        "unwritten-parameter": [
            Item(
                parameter=name,
                expected="values from the checkpoint",
                seen="none of its elements is written",
            )
            for name in missing
        ],
        "partly-written-parameter": list(gaps.values()),
        "unconsumed-tensor": unconsumed,
        "partly-loaded-tensor": list(_read_in_part(loaded, aliased)),
        "never-loaded": _never_loaded(unconsumed, missing),
        "wrong-place": exchanged(
            came_from, {name: one.shape for name, one in loaded.parameters.items()}
        ),
        "lossy-cast": [
            Item(
                parameter=next((to for to, names in came_from.items() if name in names), None),
                tensors=(name,),
                expected=str(one).removeprefix("torch."),
                seen=str(other).removeprefix("torch."),
            )
            for name, (one, other) in watch.narrowed.items()
        ],
        "iterator-not-exhausted": [] if given.exhausted else [stopped],
    }
    counts = {"asked_for": given.given, "tensors": len(given.entries)}
    checks = {
        rule: CheckFacts(tuple(items), counts if rule == "iterator-not-exhausted" else {})
        for rule, items in found.items()
    }
    return checks, TensorRoutes(came_from, writes)


def _unconsumed(folder: LargeFolder, name: str, waiting: Mapping[str, int]) -> Item:
    entry = folder.entries[name]
    return Item(
        tensors=(name,),
        seen=f"never read ({list(entry.shape)})",
        same_as=tuple(
            other.name
            for other in folder.entries.values()
            if other is not entry and _same(entry, other)
        ),
        waiting=tuple(
            parameter
            for parameter, size in waiting.items()
            if belongs(name, entry.numel, parameter, size)
        ),
    )


def _read_in_part(loaded: _Loaded, aliased: set[str]) -> Iterator[Item]:
    """Yield the tensors of which some elements go nowhere."""
    for name, places in loaded.watch.places_read().items():
        whole = loaded.given.kept[name]
        covered = cover(MemoryView.of(whole), places)
        if covered.first_gap is not None and name not in aliased:
            yield Item(
                "part",
                tensors=(name,),
                expected="every element read",
                seen=f"{covered.of - covered.elements} of {covered.of} elements are never read,"
                f" from element {covered.first_gap} on, of shape {list(whole.shape)}",
            )


def _same(one: Entry, other: Entry) -> bool:
    """Return whether two tensors have the same bytes, read until they differ."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    size = 1 << 16
    buffers = [torch.empty(min(size, one.nbytes), dtype=torch.uint8) for _ in range(2)]
    for begin in range(0, one.nbytes, size):
        end = min(begin + size, one.nbytes)
        parts = [
            entry.read_into(buffer, begin, end)
            for entry, buffer in zip((one, other), buffers, strict=True)
        ]
        if not torch.equal(*parts):
            return False
    return True


def _never_loaded(unread: Sequence[Item], missing: Mapping[str, int]) -> list[Item]:
    tensors: dict[str, list[str]] = {}
    for item in unread:
        for parameter in item.waiting:
            tensors.setdefault(parameter, []).extend(item.tensors)
    kept = "what its class has made, which nobody looked at"
    return [
        Item(parameter=parameter, tensors=tuple(names), seen=kept)
        for parameter, names in tensors.items()
        if parameter in missing
    ]


def _values(
    folder: LargeFolder, layout: TensorRoutes, memory: int
) -> tuple[CheckFacts, Mapping[str, Any]]:
    """Return the values that differ once they are loaded from a buffer that is used again.

    Also return which values that was asked of, as in `SubjectFacts.values`.
    """
    read = {name for names in layout.came_from.values() for name in names}
    models = [_on_meta(folder) for _ in range(min(_THREADS, len(os.sched_getaffinity(0))))]
    parameters = _parameters(models[0])
    sizes = {name: parameters[name].nbytes for name in layout.came_from if name in parameters}
    known = {name: names for name, names in layout.came_from.items() if name in sizes}
    layout = TensorRoutes(known, layout.writes)
    free = memory - resident_bytes() - MARGIN
    parts = load_parts(layout, sizes, min(LARGEST_PART, max(free // 8, 1)))
    compared = compare_parts(models, folder.load, layout, folder.entries, parts, free)
    not_run = compared.why_not | dict.fromkeys(
        sorted(read - compared.tensors - compared.why_not.keys()),
        "it goes into no parameter that the class has when it is made",
    )
    values = {"tensors": len(read), "compared": len(compared.tensors), "not_run": not_run}
    if not compared.items and (not_run or not compared.tensors):
        why = next(iter(not_run.values()), "no tensor was seen to go into a parameter")
        text = f"values of {len(compared.tensors)} of {len(read)} tensors were compared: {why}"
        return CheckFacts(reason=text), values
    return CheckFacts(tuple(compared.items), {"parts": len(parts)}), values
