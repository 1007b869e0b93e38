"""The parameters and buffers of one rank, and where others are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .state import NamedState, copy_state, named_tensors


@dataclass(frozen=True)
class RankTensors:
    """The tensors of one rank after a load, and where the others are."""

    state: NamedState
    aliases: tuple[tuple[str, ...], ...] = ()
    """Names of one and the same parameter or buffer, where it has several."""
    missing: tuple[str, ...] = ()
    """Modules that another rank has."""
    experts: Mapping[str, Tensor] = field(default_factory=dict)
    """For a module of experts, the place of each expert on this rank, or -1."""


def held_by(model: Any) -> RankTensors:
    """Return the parameters and buffers of a rank's model."""
    return RankTensors(copy_state(model), aliases=aliases_of(model))


def aliases_of(model: Any) -> tuple[tuple[str, ...], ...]:
    """Return the names of one and the same parameter or buffer, where it has several."""
    names: dict[int, list[str]] = {}
    for name, tensor in named_tensors(model).items():
        names.setdefault(id(tensor), []).append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)
