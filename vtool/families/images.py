"""Read from a model's folder how images are cut. Torch-free."""

import json
from pathlib import Path
from typing import Any

from vtool.families import FAMILIES
from vtool.families.facts import PatchSizes

# The default of transformers' image processor classes, of every family.
_PROCESSOR_DEFAULT = PatchSizes(14)
LARGEST_SETTINGS_FILE = 16 * 2**20
"""Bytes of a settings file that is read: a hundred times what large ones have."""
MOST_LAYERS, MOST_WIDTH = 10_000, 2**22
"""Layers of a model, and values of one of its vectors: a hundred times what large ones have."""
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "depth")
_WIDTHS = ("hidden_size", "intermediate_size", "head_dim", "num_heads", "num_attention_heads")


def read_json(file: Path) -> Any:
    """Return the contents of a JSON file; None where there is none that can be read."""
    try:
        if file.stat().st_size > LARGEST_SETTINGS_FILE:
            return None
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def beyond_any_model(folder: Path) -> str | None:
    """Return the size in a folder's config.json that no model has; None where there is none.

    transformers makes a list of its layers, and torch numbers of a width, before either is refused.
    """
    config = read_json(folder / "config.json")
    for part in (config, *config.values()) if isinstance(config, dict) else ():
        for names, most in ((_LAYERS, MOST_LAYERS), (_WIDTHS, MOST_WIDTH)):
            for name in names if isinstance(part, dict) else ():
                given = part.get(name)
                if isinstance(given, int | float) and given > most:
                    said = f"{name} {min(given, 1e300):.3g}"
                    return f"config.json says {said}, and no model has {most:,}"
    return None


def patches_of_tower(folder: Path, family: str) -> PatchSizes | None:
    """Return the patches that a folder's vision tower takes; None where config.json has none."""
    config = read_json(folder / "config.json")
    vision = config.get("vision_config") if isinstance(config, dict) else None
    return _patches(vision, FAMILIES[family].patches, "spatial_merge_size")


def patches_of_processor(folder: Path) -> PatchSizes | None:
    """Return the patches that a folder's image processor makes; None where there is none."""
    own = read_json(folder / "preprocessor_config.json")
    if own is None and isinstance(both := read_json(folder / "processor_config.json"), dict):
        own = both.get("image_processor")
    return _patches(own, _PROCESSOR_DEFAULT, "merge_size")


def _patches(given: Any, default: PatchSizes, merge: str) -> PatchSizes | None:
    if not isinstance(given, dict):
        return None
    try:
        return PatchSizes(
            int(given.get("patch_size", default.patch_size)),
            int(given.get(merge, default.merge_size)),
            int(given.get("temporal_patch_size", default.temporal_patch_size)),
        )
    except (TypeError, ValueError, OverflowError):
        return None
