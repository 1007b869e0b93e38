"""How far back the layers of a model see:

windows, beyond which tokens are out of sight. Torch-free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtool.config.images import read_json

# The families whose language part can have windows, and the defaults of transformers' config
# classes.
FAMILIES = ("qwen2_vl", "qwen2_5_vl")
_WINDOW, _LAYERS, _FIRST = 4096, 80, 80
SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True)
class Window:
    """Some layers see no more than so many tokens, themselves included."""

    tokens: int
    sliding: int
    layers: int
    """Of all, how many `sliding` there are of."""


def window_of(layer_types: Sequence[str] | None, tokens: int | None) -> Window | None:
    """That of a language model, from what transformers' config has once it is read:

    the kind of each layer, and `sliding_window`.
    """
    sliding = list(layer_types or ()).count(SLIDING)
    return Window(tokens, sliding, len(layer_types or ())) if sliding and tokens else None


def window_of_folder(folder: Path, family: str) -> Window | None:
    """The same, from a folder's config.json, read as transformers reads it;

    None where there is none, or it cannot be read.
    """
    config = read_json(folder / "config.json")
    if family not in FAMILIES or not isinstance(config, dict):
        return None
    # of old, one level
    text: Any = config if config.get("text_config") is None else config["text_config"]
    try:
        layers, first = (
            int(text.get("num_hidden_layers", _LAYERS)),
            int(text.get("max_window_layers", _FIRST)),
        )
        tokens = (
            int(text.get("sliding_window", _WINDOW) or 0)
            if text.get("use_sliding_window")
            else None
        )
    except (AttributeError, TypeError, ValueError):  # not a config: what loads it says so
        return None
    types = text.get("layer_types") or ["full_attention"] * min(first, layers) + [SLIDING] * (
        layers - first
    )
    return window_of(types, tokens) if isinstance(types, list) else None


def not_packed(window: Window | None, budget: int | None) -> tuple[str, str] | None:
    """Why rows of so many tokens cannot be packed for a model with this window, and what to do;
    None where the window never acts.

    Args:
        budget: `data.micro_batch_tokens`.
    """
    if window is None or (budget is not None and budget < window.tokens):
        return None
    message = (
        f"data.packing is token_budget, but {window.sliding} of the model's {window.layers} layers"
        f" see the last {window.tokens} tokens only (sliding_window), and attention by document has"
        " no window"
    )
    return (
        message,
        (
            f"set data.packing=none, or data.micro_batch_tokens={window.tokens - 1}, if all rows"
            " are that short"
        ),
    )
