"""Sliding windows of a language model: how far back its layers attend. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtool.families import family_facts
from vtool.families.images import MOST_LAYERS
from vtool.model_folder import ModelFolder

SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window of some of a model's layers."""

    tokens: int
    """The tokens that a layer with the window attends to, the current one included."""
    sliding: int
    """The layers that have it."""
    layers: int
    """All layers."""


def window_of(layer_types: Sequence[str] | None, tokens: int | None) -> Window | None:
    """Return the window of a language model, by what transformers' config has once it is read.

    Args:
        layer_types: the kind of each layer.
        tokens: `sliding_window`.
    """
    sliding = list(layer_types or ()).count(SLIDING)
    return Window(tokens, sliding, len(layer_types or ())) if sliding and tokens else None


def window_of_folder(folder: Path, family: str) -> Window | None:
    """Return the window by a folder's config.json, read as transformers reads it.

    None where there is no window, or no such file that can be read.
    """
    config = ModelFolder(folder).config
    default = family_facts(family).sliding_window
    if default is None or not config:
        return None
    # old folders have one level
    text: Any = config if config.get("text_config") is None else config["text_config"]
    try:
        layers = int(text.get("num_hidden_layers", default.layers))
        first = int(text.get("max_window_layers", default.first))
        used = text.get("use_sliding_window")
        tokens = int(text.get("sliding_window", default.tokens) or 0) if used else None
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    if layers > MOST_LAYERS:  # not a config: what loads it says so
        return None
    types = text.get("layer_types") or ["full_attention"] * min(first, layers) + [SLIDING] * (
        layers - first
    )
    return window_of(types, tokens) if isinstance(types, list) else None


def packing_conflict(window: Window | None, budget: int | None) -> tuple[str, str] | None:
    """Return why rows cannot be packed for a model with this window, and what to do instead.

    None where the window never acts.

    Args:
        window: of the model.
        budget: `data.micro_batch_tokens`.
    """
    if window is None or (budget is not None and budget < window.tokens):
        return None
    message = (
        f"data.packing is token_budget, but {window.sliding} of the model's {window.layers} layers"
        f" see the last {window.tokens} tokens only (sliding_window), and attention by document has"
        " no window"
    )
    help = (
        f"set data.packing=none, or data.micro_batch_tokens={window.tokens - 1}, if all rows are"
        " that short"
    )
    return message, help
