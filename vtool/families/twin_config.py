"""Configs of small twins of a model: fewer layers, and narrower ones."""

import copy
from collections.abc import Iterator
from typing import Any

_LAYERS, _FEW = ("num_hidden_layers", "depth"), 2
_HEADS = ("num_attention_heads", "num_heads")
_WIDTHS = ("hidden_size", "embed_dim")
_INNER = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")
_NARROW = 128


def with_fewer_layers(config: Any) -> Any:
    """Return a config whose parts have two layers each, or one of each kind; widths stay.

    Args:
        config: of transformers; it is changed.
    """
    for part in _parts(config):
        name = next((one for one in _LAYERS if isinstance(getattr(part, one, None), int)), None)
        if name is None or (layers := getattr(part, name)) <= _FEW:
            continue
        kinds = getattr(part, "layer_types", None) or [None] * layers
        kept = max(_FEW, *(kinds.index(kind) + 1 for kind in set(kinds)))
        for field, value in list(vars(part).items()):
            if isinstance(value, list) and len(value) == layers:
                setattr(part, field, value[:kept])
        setattr(part, name, kept)
    return config


def narrowed(config: Any) -> Any:
    """Return a copy of a config with two heads, and narrow layers.

    A head's features stay, on which rotary positions depend. Whether the class computes with it is
    to be tried: another field may name a width.
    """
    made = copy.deepcopy(config)
    widths: dict[int, int] = {}
    for part in _parts(made):
        heads = next((one for one in _HEADS if isinstance(getattr(part, one, None), int)), None)
        width = next((one for one in _WIDTHS if isinstance(getattr(part, one, None), int)), None)
        if heads is None or width is None or part is made:
            continue
        before, count = getattr(part, width), getattr(part, heads)
        own = getattr(part, "head_dim", None)
        after = _NARROW if own else 2 * (before // count)
        widths[before] = after
        groups = getattr(part, "num_key_value_heads", None)
        if isinstance(groups, int):
            part.num_key_value_heads = 2 if groups == count else 1
        setattr(part, heads, 2)
        for field in _INNER:
            if isinstance(getattr(part, field, None), int):
                setattr(part, field, _NARROW)
    for part in _parts(made):
        for field, value in list(vars(part).items()):
            if type(value) is int and value in widths and "token" not in field:
                setattr(part, field, widths[value])
    return made


def _parts(config: Any) -> Iterator[Any]:
    yield config
    yield from (one for one in vars(config).values() if hasattr(one, "to_dict"))
