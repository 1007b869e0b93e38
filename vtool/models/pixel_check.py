"""The values that a folder's image processor makes of pixels, beside its family's own."""

import copy
from typing import Any

import numpy as np
import PIL.Image

from vtool.diagnostics import Diagnostic

MOST_PIXELS = 2**26
"""Pixels of one image beyond which a processor's lower bound is refused: 768 MiB as floats."""
_WIDER, _SHIFT = 1.99, 0.75
"""Times that values may be wider or narrower than the family's, and ranges off its centre."""
_SIDES = ("patch_size", "temporal_patch_size", "merge_size")
_SETTINGS = (
    *("do_resize", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
    *("do_convert_rgb", "resample", *_SIDES),
)
_LARGEST_SIDE = 4
"""Times that a side of a patch or of a token, and its frames, may be the family's: published
folders of a family have one size."""
_FLAT = 1e-3
"""The share of the family's range below which an image is one color."""


def check_pixels(processor: Any, family: Any, folder: object) -> Diagnostic | None:
    """Look at the values that an image processor makes of a picture with every shade.

    Args:
        processor: of transformers, as the folder's files say.
        family: the image processor of the same class with its family's own settings.
        folder: for the finding.

    Returns:
        `pixels-destroyed`, where values are not finite, alike, or far from the family's; else None.
    """
    if strange := _strange(processor, family):
        return _destroyed(folder, strange)
    usual = _values(family, family)
    try:
        found = _values(processor, family)
    except (ArithmeticError, TypeError, ValueError, IndexError) as error:
        return _destroyed(folder, f"makes nothing of a picture: {type(error).__name__}: {error}")
    if not found.size or not np.isfinite(found).all():
        return _destroyed(folder, "makes values that are not finite")
    low, high = found.min(1), found.max(1)
    own_low, own_high = usual.min(1), usual.max(1)
    width, own = high - low, own_high - own_low
    if (width < _FLAT * own).any():
        return _destroyed(folder, f"makes one value of every shade: {found[:, 0].mean():.3g}")
    shift = np.abs((high + low) - (own_high + own_low)) / 2
    if (width > _WIDER * own).any() or (width * _WIDER < own).any() or (shift > _SHIFT * own).any():
        return _destroyed(
            folder,
            f"makes values from {low.min():.3g} to {high.max():.3g}, and its family reads"
            f" {own_low.min():.3g} to {own_high.max():.3g}",
        )
    return None


def _strange(processor: Any, family: Any) -> str | None:
    """Return the first setting of another kind than its family's, in words; None for none.

    What transformers makes of it is seen with the first picture, or with one of another size.
    """
    for name in _SETTINGS:
        given, own = getattr(processor, name, None), getattr(family, name, None)
        if own is None or isinstance(own, bool):
            fits = given is None or isinstance(given, bool)
        elif name in _SIDES:
            fits = type(given) is int and 0 < given <= _LARGEST_SIDE * own
        elif isinstance(own, list | tuple):
            fits = isinstance(given, list | tuple) and all(map(_is_number, given))
        else:
            fits = _is_number(given)
        if not fits:
            return f"has {name} {given!r:.60}"
    for name, edge in dict(processor.size).items():
        if edge is not None and not (_is_number(edge) and edge >= 0):
            return f"has size.{name} {edge!r:.60}"
    least = dict(processor.size).get("shortest_edge") or 0
    if least > MOST_PIXELS:
        return f"makes {least:.3g} pixels or more of every image (size.shortest_edge, min_pixels)"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(processor: Any, family: Any) -> np.ndarray:
    """Return the values of a picture with every shade, [channels, values] float."""
    side = family.patch_size * family.merge_size * 2
    ramp = np.linspace(0, 255, side).round().astype(np.uint8)
    picture = PIL.Image.fromarray(np.broadcast_to(ramp[None, :, None], (side, side, 3)).copy())
    small = copy.copy(processor)
    small.size = {"shortest_edge": 1, "longest_edge": side**2 * family.temporal_patch_size}
    with np.errstate(all="ignore"):
        patches = np.asarray(small(images=[picture], return_tensors="np")["pixel_values"])
    return patches.reshape(len(patches), 3, -1).swapaxes(0, 1).reshape(3, -1).astype(np.float64)


def _destroyed(folder: object, what: str) -> Diagnostic:
    return Diagnostic(
        "pixels-destroyed",
        f"{folder}: the image processor {what}",
        "compare its preprocessor_config.json (do_rescale, rescale_factor, do_normalize,"
        " image_mean, image_std, size) with the published one",
        "model.path",
    )
