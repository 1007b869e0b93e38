"""Settings of which only one can count: of a composed recipe's, the one that is given later."""

from collections.abc import Sequence
from typing import Any

from vtool.config.origins import Origins

# By group, both of a pair, each with the value at which it is not set.
_PAIRS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("optim", {"warmup_steps": 0, "warmup_ratio": None}),
    ("train", {"steps": None, "epochs": None}),
    ("model", {"path": None, "size": None}),
)


def unset_overridden(values: dict[str, Any], layers: Sequence[Origins]) -> None:
    """Unset one setting of a pair where a later layer gives the other.

    So `train.epochs=2` takes the place of a recipe's steps, in whichever words that says how long
    it trains. Given in one layer, both are left, for a rule to refuse.

    Args:
        values: composed; changed in place.
        layers: the origins of each layer by itself, the latest last.
    """
    for name, pair in _PAIRS:
        group = values.get(name)
        if not isinstance(group, dict):
            continue
        given = {leaf: _last(f"{name}.{leaf}", layers) for leaf in pair}
        one, other = pair
        for later, earlier in ((one, other), (other, one)):
            if group.get(later) is not None and given[later] > given[earlier] >= 0:
                group[earlier] = pair[earlier]


def _last(name: str, layers: Sequence[Origins]) -> int:
    """Return the number of the last layer that gives a setting; -1 without one."""
    return max((number for number, each in enumerate(layers) if each.of(name)), default=-1)
