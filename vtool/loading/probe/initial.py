"""Says what a parameter that no load writes keeps: garbage, zeros, what its class has put there."""

from collections.abc import Iterable

import torch
from torch import Tensor

from .state import named_parameters
from .subject import Subject

GARBAGE = "whatever is in the memory (torch.empty)"


def kept_values(subject: Subject, names: Iterable[str]) -> dict[str, str]:
    """Return in words what parameters of a new object hold, by their name.

    Memory that nobody fills may hold zeros today. Here torch fills it with NaN, and with the
    largest integer, so that it is known.
    """
    wanted = set(names)
    if not wanted:
        return {}
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        parameters = named_parameters(subject.make())
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
    return {name: _in_words(parameters[name]) for name in wanted if name in parameters}


def _in_words(tensor: Tensor) -> str:
    values = tensor.detach().reshape(-1)
    if not values.numel():
        return "nothing"
    if values.is_floating_point() or values.is_complex():
        values = values.to(torch.complex64 if values.is_complex() else torch.float32)
        if bool(values.isnan().all()):
            return GARBAGE
    elif values.dtype != torch.bool and bool((values == torch.iinfo(values.dtype).max).all()):
        return GARBAGE
    first = values[0]
    if bool((values == first).all()):
        return "zeros" if first == 0 else f"{first.item():g} everywhere"
    return "what its class has initialized it with"
