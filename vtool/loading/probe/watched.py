"""The first two loads: one for the reference, the other watched operation by operation."""

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from .errors import LoadFailed, NotRun, error_text
from .exchanged import exchanged
from .facts import CheckFacts, Item
from .held import RankTensors, aliases_of
from .initial import kept_values
from .partly_loaded import partly_loaded, unread
from .places import belongs
from .randomness import other_seeds
from .reference import ReferenceTensors, load_new, marked_object
from .sources import OwnedSource, TrackedSource
from .state import (
    MARKS,
    NamedState,
    compare_states,
    copy_state,
    fill_with_byte,
    held_tensors,
    marked,
    named_parameters,
    named_tensors,
    same_bits,
)
from .subject import Subject
from .transposed import transposed
from .watch import LoadWatch, loses, storage_address

_ASKED_FOR_BIAS = re.compile(r"config\.\w*bias\b|getattr\([^()]*[\"']\w*bias\w*[\"']")
"""A config that is asked about biases, in the source of a class."""

_OWN_NAMES = (
    "; it was given random tensors under its own parameters' names: where it takes others, name a"
    " checkpoint (--checkpoint FOLDER, or a function checkpoint() in its file)"
)


def first_load(subject: Subject, source: OwnedSource) -> NamedState:
    """Return the tensors after a load from owned memory.

    Raises:
        NotRun, LoadFailed: it does not load; the second where the checkpoint is the user's own.
    """
    try:
        return copy_state(load_new(subject, source), held=True)
    except Exception as error:
        kind = LoadFailed if subject.origin == "given" else NotRun
        given = _OWN_NAMES if subject.about.own_names else ""
        raise kind(f"the checkpoint does not load: {error_text(error)}{given}") from error


def watched_load(
    subject: Subject, slots: int, sources: Sequence[str], first: OwnedSource, before: NamedState
) -> tuple[ReferenceTensors, dict[str, CheckFacts]]:
    """Load a second time, otherwise marked, from tracked memory, with every operation watched.

    Args:
        first: the source of the first load, which has counted what it was asked for.
        before: the tensors after the first load.

    Returns:
        The reference for later loads, and the facts of every check that these two answer.
    """
    source = TrackedSource(subject.checkpoint)
    model = marked_object(subject, MARKS[1])
    homes = {storage_address(tensor) for tensor in named_tensors(model).values()}
    watch = LoadWatch(source, homes)
    with other_seeds():
        if subject.streams:
            with watch:
                subject.load(model, source)
        else:
            subject.load(model, source)
    held = dict(source.held)
    landed = watch.followed.landed(held)
    after = copy_state(model, held=True)
    tensors = held_tensors(model)
    addresses = {name: storage_address(tensor) for name, tensor in tensors.items()}
    aliased = {source.addresses[at] for at in addresses.values() if at in source.addresses}
    came_from = {
        # where loads cannot be watched, a parameter is taken for the tensor of its name
        name: sorted(watch.came_from.get(at, set()) | {*filter(None, [source.addresses.get(at)])})
        if subject.streams
        else [name] * (name in subject.checkpoint)
        for name, at in addresses.items()
    }
    parameters = named_parameters(model)
    gaps = _never_written(before, after, parameters)
    if subject.streams:
        # buffers without tensors are computed; a mark would not be computed again
        of_model = named_tensors(model)
        buffers = [name for name in of_model if name not in parameters and came_from[name]]
        gaps |= _buffer_gaps(subject, buffers)
    chance = _never_initialized(before, after, gaps, came_from)
    names = [name for name in named_tensors(model) if name in before]
    alone = RankTensors({name: before[name] for name in names}, aliases_of(model))
    reference = ReferenceTensors(subject, slots, sources, before, gaps | chance, came_from, alone)
    (subject.destroy or source.destroy)()
    changed = compare_states(after, copy_state(model, held=True))
    suspects = subject.unread(model) if subject.unread else {*source.names} - watch.read - aliased
    never_read = unread(reference, suspects)
    varying = compare_states(before, after, reference.unwritten)
    whole = [name for name, mask in gaps.items() if mask.all()]
    kept = kept_values(subject, whole)
    unconsumed = [_unconsumed(reference, model, name) for name in never_read]
    found: dict[str, Collection[Item]] = {
        "unwritten-parameter": [
            Item(
                parameter=name,
                expected="values from the checkpoint",
                seen=f"none of its elements is written: it keeps {kept.get(name, 'what it held')}",
            )
            for name in whole
        ],
        "never-loaded": _never_loaded(unconsumed, kept),
        "wrong-place": [
            *exchanged(came_from, {name: one.shape for name, one in after.items()}),
            *transposed(came_from, before, subject.checkpoint),
        ],
        "partly-written-parameter": [
            _partly_written(reference, name) for name, mask in gaps.items() if not mask.all()
        ],
        "unconsumed-tensor": unconsumed,
        "aliased-parameter": reference.items(changed),
        "lossy-cast": _narrowed(reference, watch),
        "nondeterministic": [
            *(Item("differs", name, (), *difference) for name, difference in varying.items()),
            *(Item("chance", name) for name in chance),
        ],
    }
    checks = {rule: CheckFacts(tuple(items)) for rule, items in found.items()}
    if subject.streams:
        checks["partly-loaded-tensor"] = partly_loaded(
            reference, watch.followed, landed, never_read
        )
        copies = watch.copies.most(set(addresses.values()))
        checks |= _asked_and_held(first, source, held, copies)
    return reference, checks


def _never_written(
    first: NamedState, second: NamedState, names: Collection[str]
) -> dict[str, Tensor]:
    """Return a mask for each tensor of which some elements still have the marks of two loads."""
    found = {}
    for name in names:
        before, now = first.get(name), second[name]
        if before is not None and _alike(before, now):
            mask = marked(before, MARKS[0])
            if mask.any() and (mask := mask & marked(now, MARKS[1])).any():
                found[name] = mask
    return found


def _buffer_gaps(subject: Subject, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the unwritten elements of buffers, from two more loads in which they are marked."""

    def load(byte: int) -> NamedState:
        model = subject.make()
        fill_with_byte(model, byte, names)
        subject.load(model, OwnedSource(subject.checkpoint))
        return copy_state(model)

    return _never_written(load(MARKS[0]), load(MARKS[1]), names) if names else {}


def _never_initialized(
    before: NamedState, after: NamedState, gaps: NamedState, came_from: Mapping[str, Sequence[str]]
) -> dict[str, Tensor]:
    """Return a full mask for each buffer that holds whatever was in the memory.

    Nothing is loaded into it, and it differs from object to object.
    """
    return {
        name: torch.ones(before[name].numel(), dtype=torch.bool)
        for name in compare_states(before, after, gaps)
        if not came_from.get(name)
        and name in before
        and name in after
        and _alike(before[name], after[name])
    }


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _partly_written(reference: ReferenceTensors, name: str) -> Item:
    mask = reference.unwritten[name]
    return Item(
        parameter=name,
        tensors=tuple(reference.came_from.get(name, ())),
        expected="every element written",
        seen=f"{int(mask.sum())} of {mask.numel()} elements are not written, from element"
        f" {int(mask.nonzero()[0])} on, of shape {list(reference.state[name].shape)}",
    )


def _unconsumed(reference: ReferenceTensors, model: Any, name: str) -> Item:
    checkpoint = reference.subject.checkpoint
    tensor = checkpoint[name]
    return Item(
        tensors=(name,),
        seen=f"never read ({list(tensor.shape)})",
        same_as=tuple(
            other
            for other, value in checkpoint.items()
            if other != name and _alike(value, tensor) and same_bits(value, tensor)
        ),
        waiting=tuple(
            parameter
            for parameter, mask in reference.unwritten.items()
            if belongs(name, tensor.numel(), parameter, mask.numel())
        ),
        weight_in=_weight_in(reference, model, name),
    )


def _never_loaded(unread: Sequence[Item], kept: Mapping[str, str]) -> list[Item]:
    """Return an item for each parameter that waits for tensors that are never read."""
    tensors: dict[str, list[str]] = {}
    for item in unread:
        for parameter in item.waiting:
            tensors.setdefault(parameter, []).extend(item.tensors)
    return [
        Item(parameter=parameter, tensors=tuple(names), seen=kept[parameter])
        for parameter, names in tensors.items()
        if parameter in kept
    ]


def _weight_in(reference: ReferenceTensors, model: Any, name: str) -> str | None:
    """Return the parameter that the weight of a bias's layer went into.

    None where there is none, or where the config decides about biases: a twin's may lack the field
    that a real one has (attention_bias of GLM-4V).
    """
    module, _, kind = name.rpartition(".")
    weight = f"{module}.weight"
    if kind != "bias" or reference.subject.checkpoint[name].count_nonzero() == 0:
        return None
    into = next((into for into, names in reference.came_from.items() if weight in names), None)
    return None if into is None or _config_decides_bias(model, into) else into


def _config_decides_bias(model: Any, parameter: str) -> bool:
    """Return whether a module that a parameter is in asks a config about biases."""
    path = parameter.split(".")[:-1]
    for end in range(len(path) + 1):
        with suppress(OSError, TypeError, AttributeError):
            holder = model.get_submodule(".".join(path[:end]))
            if _ASKED_FOR_BIAS.search(inspect.getsource(type(holder))):
                return True
    return False


def _narrowed(reference: ReferenceTensors, watch: LoadWatch) -> list[Item]:
    """Return the tensors that went into a dtype that holds less than theirs."""
    narrowed = dict(watch.narrowed)
    if not reference.subject.streams:
        for name, tensor in reference.subject.checkpoint.items():
            into = reference.state.get(name)
            if into is not None and loses(tensor.dtype, into.dtype):
                narrowed[name] = (tensor.dtype, into.dtype)
    return [
        Item(
            parameter=next(
                (to for to, names in reference.came_from.items() if name in names), None
            ),
            tensors=(name,),
            expected=str(before).removeprefix("torch."),
            seen=str(after).removeprefix("torch."),
        )
        for name, (before, after) in narrowed.items()
    ]


def _asked_and_held(
    first: OwnedSource, source: TrackedSource, held: Mapping[str, int], copies: int
) -> dict[str, CheckFacts]:
    """Return the facts about a stream: whether it was exhausted, and what was kept of it.

    Args:
        copies: the most tensors of which copies were held at once, in addition to the model.
    """
    total = len(source.names)
    stopped = Item(
        "early" if first.given < total else "end", None, tuple(first.names[first.given :])
    )
    retained = []
    # more than a fused weight takes
    most = max(8, total // 2)
    if source.most_held > most:
        retained.append(Item("peak", seen=f"{source.most_held} of {total} tensors held at once"))
    elif copies > most:
        seen = f"copies of {copies} of {total} tensors held at once, in addition to the model"
        retained.append(Item("peak", seen=seen))
    # The last one is often still the value of a loop's variable.
    if len(held) > 1:
        seen = f"{len(held)} tensors are held after the load"
        retained.append(Item("after", tensors=tuple(held), seen=seen))
    return {
        "iterator-not-exhausted": CheckFacts(
            () if first.exhausted else (stopped,), {"asked_for": first.given, "tensors": total}
        ),
        "retained-memory": CheckFacts(
            tuple(retained),
            {
                "most_tensors": source.most_held,
                "tensors": total,
                "most_bytes": source.most_bytes,
            },
        ),
    }
