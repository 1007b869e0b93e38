"""The warm-up of a composed recipe: of its two settings, the one that is given later."""

from collections.abc import Sequence
from typing import Any

from vtool.config.origins import Origins

_UNSET = {"warmup_steps": 0, "warmup_ratio": None}


def keep_later_warmup(values: dict[str, Any], layers: Sequence[Origins]) -> None:
    """Unset `optim.warmup_steps` where a later layer gives `warmup_ratio`, or the other way round.

    So a warm-up of one's own takes the place of a recipe's, in whichever words that says it. Given
    in one layer, both are left, for a rule to refuse.

    Args:
        values: composed; changed in place.
        layers: the origins of each layer by itself, the latest last.
    """
    optim = values.get("optim")
    if not isinstance(optim, dict):
        return
    given = {name: _last(f"optim.{name}", layers) for name in _UNSET}
    for name, other in (tuple(_UNSET), tuple(reversed(_UNSET))):
        if optim.get(name) is not None and given[name] > given[other] >= 0:
            optim[other] = _UNSET[other]


def _last(name: str, layers: Sequence[Origins]) -> int:
    """Return the number of the last layer that gives a setting; -1 without one."""
    return max((number for number, each in enumerate(layers) if each.of(name)), default=-1)
