"""Guesses a config's missing field from its name, at the size of a tiny model."""

from collections.abc import Mapping
from typing import Any

from .shrink import HEAD_DIM, HIDDEN, shrink, small

_UNKNOWN = 1 << 20
"""A size that no table has: a field that comes back with it is not a size."""
BY_LAST_WORD: Mapping[str, Any] = {
    **dict.fromkeys(("act", "activation"), "silu"),
    **dict.fromkeys(("eps", "epsilon"), 1e-6),
    **dict.fromkeys(("theta", "base"), 10000.0),
    **dict.fromkeys(("std", "range"), 0.02),
    **dict.fromkeys(("scale", "factor", "multiplier", "scaling", "alpha"), 1.0),
    "dropout": 0.0,
    "func": "sigmoid",
    "limit": 7.0,
}
"""The value of a field by the last word of its name."""
SWITCHES = frozenset(
    ["use", "is", "has", "add", "enable", "apply", "with", "do", "norm", "tie", "include", "skip"]
)
"""First words of the names of fields that are on or off."""


def guess_field(name: str, table: Mapping[str, Any]) -> Any:
    """Return a value for a field that a config lacks: the table's, else by the field's name."""
    if name in table:
        return as_component(table[name])
    if name.endswith("_config") or name == "model":
        return _inner_config(name)
    return _guess_plain(name)


def as_component(value: Any) -> Any:
    """Return a value of the table, with a config for each dict that has a `model_type`.

    Classes read a component's fields as attributes, and those of other dicts by their keys.
    """
    from transformers import PretrainedConfig

    if isinstance(value, list):
        return [as_component(entry) for entry in value]
    if not isinstance(value, dict) or "model_type" not in value:
        return value
    config = PretrainedConfig()
    for name, inner in value.items():
        setattr(config, name, as_component(inner))
    return config


def value_in_words(value: Any) -> Any:
    """Return a value for a report: of a config, only the name of its class."""
    from transformers import PretrainedConfig

    if isinstance(value, list):
        return [value_in_words(entry) for entry in value]
    return f"a {type(value).__name__}" if isinstance(value, PretrainedConfig) else value


def _guess_plain(name: str) -> Any:
    if (tiny := small(name, _UNKNOWN)) != _UNKNOWN:
        return tiny
    words = name.split("_")
    first, last = words[0], words[-1]
    if first in SWITCHES or last == "bias":
        return False
    if last in BY_LAST_WORD:
        return BY_LAST_WORD[last]
    if name.endswith("head_dim"):
        return HEAD_DIM
    if first in ("num", "n"):
        return 1
    return HIDDEN if last in ("dim", "size", "width", "channels", "features") else None


def _inner_config(name: str) -> Any:
    """Return a config for a component; fields that it lacks are guessed in turn."""
    import transformers

    kinds = {
        "vision": ("SiglipVisionConfig", "SiglipVisionModel"),
        "audio": ("WhisperConfig", "WhisperModel"),
    }
    config_class, architecture = next(
        (kinds[kind] for kind in kinds if kind in name), ("Qwen2Config", "Qwen2ForCausalLM")
    )
    config = shrink(getattr(transformers, config_class)())
    config.architectures = [architecture]
    return config
