"""Checkpoint tensors of which some elements are nowhere in a model that was loaded."""

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from .arrived import ElementTrace
from .facts import CheckFacts, Item
from .reference import ReferenceTensors
from .sources import OwnedSource, other_values

Changed = Callable[[Collection[str]], Mapping[str, Tensor]]
"""Given names, a checkpoint whose tensors of these names have other values."""


def unread(reference: ReferenceTensors, suspects: Collection[str]) -> list[str]:
    """Return the tensors whose values make no difference to the loaded model.

    Args:
        suspects: those that no operation was seen to read.
    """
    checkpoint = reference.subject.checkpoint
    names = [name for name in checkpoint if name in suspects]
    return _without_effect(reference, names, lambda some: other_values(checkpoint, set(some)))


def partly_loaded(
    reference: ReferenceTensors,
    followed: ElementTrace,
    landed: Mapping[str, Tensor],
    never_read: Collection[str],
) -> CheckFacts:
    """Return an item for each tensor with elements that are nowhere, and make no difference.

    Args:
        landed: for each tensor, a mask of its elements that were seen to be somewhere.
        never_read: tensors that are wholly left out, which another rule reports.
    """
    checkpoint = reference.subject.checkpoint
    lost = {
        name: ~mask for name, mask in landed.items() if name not in never_read and not mask.all()
    }

    def changed(names: Collection[str]) -> Mapping[str, Tensor]:
        return {
            **checkpoint,
            **{name: _with_others(checkpoint[name], lost[name]) for name in names},
        }

    found = _without_effect(reference, list(lost), changed)
    unseen = {*followed.computed(), *lost.keys()} - {*found}
    if not found and len(unseen) + len(never_read) >= len(checkpoint):
        reason = "which elements arrive is not seen: they are computed with, or moved out of sight"
        return CheckFacts(reason=reason)
    measured = {"tensors": len(checkpoint), "not_seen": len(unseen)}
    return CheckFacts(tuple(_item(reference, name, lost[name]) for name in found), measured)


def region(mask: Tensor, shape: Sequence[int]) -> str:
    """Return where elements are, in words: a slice of each dimension, where that is all of them.

    Args:
        mask: at least one element, of shape (elements,).
        shape: the tensor's.
    """
    where = mask.view(*shape).nonzero()
    if not len(shape):
        return "its only element"
    low, high = where.min(0).values, where.max(0).values + 1
    if int((high - low).prod()) != len(where):
        return f"from element {int(mask.nonzero()[0])} on"
    slices = [
        ":" if (begin, end) == (0, size) else f"{begin}:{end}"
        for begin, end, size in zip(low.tolist(), high.tolist(), shape, strict=True)
    ]
    return f"[{', '.join(slices)}]"


def _without_effect(
    reference: ReferenceTensors, names: Sequence[str], changed: Changed
) -> list[str]:
    """Return the names whose change makes no difference to what is loaded."""
    if not names or not reference.compare(lambda: reference.load(OwnedSource(changed(names)))):
        return list(names)
    if len(names) == 1:
        return []
    half = len(names) // 2
    return [
        name
        for part in (names[:half], names[half:])
        for name in _without_effect(reference, part, changed)
    ]


def _with_others(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return a tensor in which each element of a mask has another value."""
    if tensor.is_floating_point():
        other = 1 - tensor.float()
        other[other == tensor.float()] = 2
        other = other.to(tensor.dtype)
    else:
        other = tensor ^ 1 if tensor.dtype != torch.bool else ~tensor
    changed = tensor.clone()
    where = mask.view(tensor.shape)
    changed[where] = other[where]
    return changed


def _item(reference: ReferenceTensors, name: str, lost: Tensor) -> Item:
    shape = list(reference.subject.checkpoint[name].shape)
    into = [one for one, names in reference.came_from.items() if name in names]
    rest = f"; the others go into {into[0]}" if into and not lost.all() else ""
    return Item(
        "part",
        tensors=(name,),
        expected="every element is somewhere in the model",
        seen=f"{int(lost.sum())} of {lost.numel()} elements are nowhere: {region(lost, shape)} of"
        f" shape {shape}{rest}",
    )
