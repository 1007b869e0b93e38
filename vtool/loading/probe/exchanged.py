"""Weights in each other's place: each holds what the name of the other says."""

from collections.abc import Mapping, Sequence

from .facts import Item

_Likeness = tuple[bool, int]


def exchanged(
    came_from: Mapping[str, Sequence[str]], shapes: Mapping[str, Sequence[int]]
) -> list[Item]:
    """Return an item for each parameter of a ring of parameters that hold each other's weights.

    Two parameters of one shape are exchanged if the tensors that went into the one are named as the
    other is, and the other way round: `layers.0.norm1.weight` holds `layers.0.norm2.weight` of the
    checkpoint, or `layers.1.norm1.weight`. Names that agree with no parameter, or with several as
    well, say nothing; nor does a shift by one, as of layers that are counted from another number.

    Args:
        came_from: the tensors of the checkpoint that went into each parameter.
        shapes: of each parameter.
    """
    alike: dict[tuple[int, ...], list[str]] = {}
    for parameter, tensors in came_from.items():
        if tensors and parameter in shapes:
            alike.setdefault(tuple(shapes[parameter]), []).append(parameter)
    wanted: dict[str, str] = {}
    for group in alike.values():
        for parameter in group:
            if _is_in_place(parameter, came_from[parameter]):
                continue
            if (other := _better(parameter, group, came_from)) is not None:
                wanted[parameter] = other
    return [
        Item(
            parameter=parameter,
            tensors=tuple(came_from[parameter]),
            expected=", ".join(came_from[wanted[parameter]]),
            seen=", ".join(came_from[parameter]),
        )
        for parameter in came_from
        if _in_ring(parameter, wanted)
    ]


def _better(
    parameter: str, group: Sequence[str], came_from: Mapping[str, Sequence[str]]
) -> str | None:
    """Return the one parameter whose tensors are named more like this one than its own are."""
    own = _likeness(parameter, came_from[parameter])
    found = {other: _likeness(parameter, came_from[other]) for other in group if other != parameter}
    best = max(found.values(), default=own)
    others = [other for other, likeness in found.items() if likeness == best]
    return others[0] if best > own and len(others) == 1 else None


def _is_in_place(parameter: str, tensors: Sequence[str]) -> bool:
    """Return whether a parameter has the one tensor of its name, or of its name behind a prefix.

    Most have, and need not be compared with all others of their shape.
    """
    return len(tensors) == 1 and f".{parameter}".endswith(f".{tensors[0]}")


def _likeness(parameter: str, tensors: Sequence[str]) -> _Likeness:
    """Return whether numbers of layers agree, and how many names do, from the end on.

    Of several tensors, which one fused weight has, it is the least.
    """
    path = parameter.split(".")
    numbers = [part for part in path if part.isdigit()]
    found = []
    for tensor in tensors:
        other = tensor.split(".")
        of_other = [part for part in other if part.isdigit()]
        # experts of one fused weight have numbers of their own behind the layer's
        agree = of_other[: len(numbers)] == numbers
        pairs = zip(reversed(path), reversed(other), strict=False)
        same = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
        found.append((agree, min(len(path), len(other)) if same is None else same))
    return min(found)


def _in_ring(parameter: str, wanted: Mapping[str, str]) -> bool:
    """Return whether what a parameter wants, and what that one wants, comes back to it."""
    seen, at = set(), wanted.get(parameter)
    while at is not None and at not in seen:
        if at == parameter:
            return True
        seen.add(at)
        at = wanted.get(at)
    return False
