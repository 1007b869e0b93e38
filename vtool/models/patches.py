"""Patches of an image: as transformers' image processor cuts them, in half its time."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

Grid = tuple[int, int, int]

_DECIDING = (
    "do_resize",
    "do_rescale",
    "rescale_factor",
    "do_normalize",
    "image_mean",
    "image_std",
    "do_convert_rgb",
    "resample",
    "patch_size",
    "temporal_patch_size",
    "merge_size",
)
"""An image processor's settings on which patches depend, its sizes apart."""


@dataclass(frozen=True, slots=True)
class ByteValues:
    """The values that an image processor makes of bytes: of each channel's, by a table.

    A table has no arithmetic: on any device it gives the image processor's floats, to the bit.
    """

    table: Tensor
    """float32 [channels · 256]"""
    width: int
    """The values of a patch: channels · frames · patch_size²."""

    def of(self, patches: Tensor) -> Tensor:
        """Return the pixel values for the vision tower, on the device of the patches.

        Args:
            patches: uint8 [P, width] of a video, or [P, channels · patch_size²] of an image, which
                fills the frames of a patch with itself.

        Returns:
            float32 [P, width].
        """
        channels = len(self.table) // 256
        table = self.table.to(patches.device, non_blocking=True)
        rows = 256 * torch.arange(channels, dtype=torch.int32, device=patches.device)
        places = patches.view(len(patches), channels, -1) + rows[:, None]
        values = table.index_select(0, places.view(-1))
        return self.repeated(values.view(len(patches), -1))

    def repeated(self, patches: Tensor) -> Tensor:
        """Return patches [P, width] of those of one frame; those of all frames as they are."""
        frames = self.width // patches.shape[1]
        if frames == 1:
            return patches
        of_one = patches.view(len(patches), len(self.table) // 256, 1, -1)
        return of_one.expand(-1, -1, frames, -1).reshape(len(patches), -1)

    def equals(self, other: "ByteValues | None") -> bool:
        """Return whether another image processor makes the same of all bytes."""
        return other is not None and torch.equal(self.table, other.table)

    def pin_memory(self) -> "ByteValues":
        """Return a copy whose table a device reads while the CPU continues."""
        return ByteValues(self.table.pin_memory(), self.width)


def byte_values(processor: Any) -> ByteValues | None:
    """Return the values of bytes; None where an image processor does something else with them."""
    settings = tuple(_hashable(getattr(processor, name, None)) for name in _DECIDING)
    make: Callable[..., Any] = type(processor)
    table = _proved_table(make, settings)
    if table is None:
        return None
    side, frames = processor.patch_size, processor.temporal_patch_size
    return ByteValues(table, len(table) // 256 * frames * side**2)


def image_bytes(processor: Any, picture: Any) -> tuple[Tensor, Grid]:
    """Return an image's patches as bytes, where there are `byte_values` of them; else as floats.

    Returns:
        uint8 [patches, channels · patch_size²]: an eighth of the memory of floats for two frames.
        Or what `image_patches` returns.

    Raises:
        ValueError: an extreme aspect ratio.
    """
    if picture.mode != "RGB" or byte_values(processor) is None:
        return image_patches(processor, picture)
    strips, (h, w) = _strips(processor, picture)
    # [h / merge, w / merge, merge, merge, channels, side, side]: a feature's patches lie together
    order = np.ascontiguousarray(strips.transpose(1, 4, 2, 5, 0, 3, 6))
    return torch.from_numpy(order).view(h * w, -1), (1, h, w)


def image_patches(processor: Any, picture: Any) -> tuple[Tensor, Grid]:
    """Return an image's patches, bit for bit those of the image processor, and their grid.

    The image processor rescales and normalizes every pixel in float64 and float32, and copies the
    result several times. A byte has but 256 values, so here they are looked up in a table that the
    image processor itself has made. A processor of other steps cuts the image itself.

    Args:
        processor: an image processor of transformers.
        picture: of PIL.

    Returns:
        float32 [patches, channels · temporal_patch_size · patch_size²], and patches along time,
        height and width.

    Raises:
        ValueError: an extreme aspect ratio.
    """
    settings = tuple(_hashable(getattr(processor, name, None)) for name in _DECIDING)
    make: Callable[..., Any] = type(processor)
    table = _proved_table(make, settings) if picture.mode == "RGB" else None
    return _whole(processor, picture) if table is None else _looked_up(processor, picture, table)


def resized_size(processor: Any, width: int, height: int) -> tuple[int, int] | None:
    """Return the width and height that an image processor resizes a picture to.

    None where it has no rule of its own for them, or refuses the picture.
    """
    if not processor.do_resize:
        return width, height
    resize = getattr(sys.modules[type(processor).__module__], "smart_resize", None)
    size = dict(processor.size)
    if resize is None or not {"shortest_edge", "longest_edge"} <= size.keys():
        return None
    given = {
        "height": height,
        "width": width,
        "factor": processor.patch_size * processor.merge_size,
        "min_pixels": size["shortest_edge"],
        "max_pixels": size["longest_edge"],
    }
    if "num_frames" in inspect.signature(resize).parameters:
        times = processor.temporal_patch_size
        given |= {"num_frames": times, "temporal_factor": times}
    try:
        tall, wide = resize(**given)
    except ValueError:  # an extreme aspect ratio
        return None
    return int(wide), int(tall)


def _whole(processor: Any, picture: Any) -> tuple[Tensor, Grid]:
    encoded = processor(images=[picture], return_tensors="pt")
    t, h, w = encoded["image_grid_thw"][0].tolist()
    return encoded["pixel_values"], (t, h, w)


def _strips(processor: Any, picture: Any) -> tuple[np.ndarray, tuple[int, int]]:
    """Return an image's bytes, resized and cut, and its patches along height and width.

    Returns:
        uint8 [channels, h / merge, merge, side, w / merge, merge, side], and h, w.
    """
    from transformers.image_utils import SizeDict

    side, merge, times = processor.patch_size, processor.merge_size, processor.temporal_patch_size
    asked = {
        "size": SizeDict(**dict(processor.size)),
        "resample": processor.resample,
        "factor": side * merge,
        "temporal_factor": times,  # not every class asks for it
    }
    if processor.backend == "torchvision":
        pixels = processor.resize(processor.process_image(picture)[None], **asked)[0].numpy()
    else:
        pixels = processor.resize(np.moveaxis(np.asarray(picture), -1, 0), **asked)
    channels, height, width = pixels.shape
    h, w = height // side, width // side
    return pixels.reshape(channels, h // merge, merge, side, w // merge, merge, side), (h, w)


def _looked_up(processor: Any, picture: Any, table: Tensor) -> tuple[Tensor, Grid]:
    side, merge, times = processor.patch_size, processor.merge_size, processor.temporal_patch_size
    strips, (h, w) = _strips(processor, picture)
    channels = len(strips)
    row_of_table = 256 * torch.arange(channels, dtype=torch.int32).view(1, channels, 1)
    patches = torch.empty(h // merge, w * merge, channels, times, side * side)
    # Strip by strip: what lies between the bytes and the patches stays in the processor's cache.
    for number, cut in enumerate(patches):
        # [w / merge, merge, merge, channels, side, side]: a feature's patches lie together
        order = strips[:, number].transpose(3, 1, 4, 0, 2, 5)
        strip = torch.from_numpy(np.ascontiguousarray(order, dtype=np.int32))
        places = strip.view(w * merge, channels, side * side) + row_of_table
        values = table.index_select(0, places.view(-1))
        cut.copy_(values.view(w * merge, channels, 1, side * side))
    return patches.view(h * w, -1), (1, h, w)


@lru_cache(maxsize=8)
def _proved_table(make: Callable[..., Any], settings: tuple[Any, ...]) -> Tensor | None:
    """Return the values of each channel's 256 bytes, float32 [channels · 256].

    None where patches by this table are not those of the image processor, to the bit.
    """
    given = zip(_DECIDING, settings, strict=True)
    processor = make(**{name: value for name, value in given if value is not None})
    if not (processor.do_resize and processor.do_rescale and processor.do_normalize):
        return None
    picture = _every_byte_and_noise()
    try:
        table = _table(processor)
        patches, grid = _looked_up(processor, picture, table)
        wanted, wanted_grid = _whole(processor, picture)
    except (AttributeError, TypeError, ValueError, RuntimeError):  # other methods, other shapes
        return None
    return table if grid == wanted_grid and torch.equal(patches, wanted) else None


def _table(processor: Any) -> Tensor:
    every_byte = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 1, 256))
    if processor.backend == "torchvision":
        steps = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
        every: Tensor = processor.rescale_and_normalize(
            torch.from_numpy(every_byte.copy()), *(getattr(processor, step) for step in steps)
        )
        return every.contiguous().view(-1)
    rescaled = processor.rescale(every_byte, processor.rescale_factor)
    values = processor.normalize(rescaled, processor.image_mean, processor.image_std)
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).view(-1)


def _every_byte_and_noise() -> Any:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    pixels[:48] = np.repeat(np.arange(256, dtype=np.uint8), 30).reshape(48, 160, 1)
    return Image.fromarray(pixels)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
