"""Read from a model's folder how images are cut. Torch-free."""

from pathlib import Path
from typing import Any

from vtool.families import family_facts
from vtool.families.facts import PatchSizes
from vtool.model_folder import ModelFolder

# The default of transformers' image processor classes, of every family.
_PROCESSOR_DEFAULT = PatchSizes(14)
MOST_LAYERS, MOST_WIDTH = 10_000, 2**22
"""Layers of a model, and values of one of its vectors: a hundred times what large ones have."""
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "depth")
_WIDTHS = ("hidden_size", "intermediate_size", "head_dim", "num_heads", "num_attention_heads")


def beyond_any_model(folder: Path) -> str | None:
    """Return the size in a folder's config.json that no model has; None where there is none.

    transformers makes a list of its layers, and torch numbers of a width, before either is refused.
    """
    config = ModelFolder(folder).config
    for part in (config, *config.values()):
        for names, most in ((_LAYERS, MOST_LAYERS), (_WIDTHS, MOST_WIDTH)):
            for name in names if isinstance(part, dict) else ():
                given = part.get(name)
                if isinstance(given, int | float) and given > most:
                    said = f"{name} {min(given, 1e300):.3g}"
                    return f"config.json says {said}, and no model has {most:,}"
    return None


def patches_of_tower(folder: Path, family: str) -> PatchSizes | None:
    """Return the patches that a folder's vision tower takes; None where config.json has none."""
    vision = ModelFolder(folder).config.get("vision_config")
    return _patches(vision, family_facts(family).patches, "spatial_merge_size")


def patches_of_processor(folder: Path) -> PatchSizes | None:
    """Return the patches that a folder's image processor makes; None where there is none."""
    return _patches(ModelFolder(folder).image_processor, _PROCESSOR_DEFAULT, "merge_size")


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
