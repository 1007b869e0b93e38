"""How images and videos are cut, by family and in a model's folder.

Torch-free, for the rules and for the families themselves.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Cut:
    """An image is cut into patches of `patch_size` × `patch_size` pixels;

    `merge_size` × `merge_size` of these become an image token.
    """

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    """Frames in a patch. A picture stands in for each of them."""

    @property
    def smallest(self) -> int:
        """The pixels of the smallest image, which is one image token."""
        return (self.patch_size * self.merge_size) ** 2


_OLD, _NEW = (
    Cut(patch_size=14, merge_size=2, temporal_patch_size=2),
    Cut(patch_size=16, merge_size=2, temporal_patch_size=2),
)
CUTS: Mapping[str, Cut] = {
    "qwen2_vl": _OLD,
    "qwen2_5_vl": _OLD,
    "qwen3_vl": _NEW,
    "qwen3_5": _NEW,
    "glm4v": _OLD,
}
"""By family, where no folder says so."""


@dataclass(frozen=True, slots=True)
class Clip:
    """How a family's video processor samples and sizes a video, where no folder says so:

    the defaults of transformers' class.
    """

    smallest: int
    """Pixels."""
    largest: int
    """Pixels."""
    whole: bool
    """Whether these bound all frames of a video together, or each by itself."""
    colours: float | None
    """Their mean, and their deviation, on each channel; None for those of CLIP."""
    capped_tokens: int | None
    """What `cap_pixels_per_frame` divides among the frames, or lets each have;

    None where there is no such thing.
    """
    max_frames: int | None = 768
    max_seconds: float | None = None
    """A longer video is thinned out to the frames of so many seconds."""
    min_frames: int = 4
    fps: float = 2.0
    """Frames a second.

    Qwen2-VL's and Qwen2.5-VL's class has none: there it is that of qwen-vl-utils, with which they
    were trained.
    """


_FRAMES = Clip(128 * 28 * 28, 768 * 28 * 28, whole=False, colours=None, capped_tokens=128_000)
_WHOLE = Clip(128 * 32 * 32, 768 * 32 * 32, whole=True, colours=0.5, capped_tokens=768)
_SECONDS = Clip(
    112 * 112,
    30_000 * 2 * 28 * 28,
    True,
    None,
    None,
    max_frames=None,
    max_seconds=300.0,
    min_frames=1,
)
CLIPS: Mapping[str, Clip] = {
    "qwen2_vl": _FRAMES,
    "qwen2_5_vl": _FRAMES,
    "qwen3_vl": _WHOLE,
    "qwen3_5": _WHOLE,
    "glm4v": _SECONDS,
}
"""By family."""


def read_json(file: Path) -> Any:
    """What a file holds; None where there is none that can be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def cut_of_tower(folder: Path, family: str) -> Cut | None:
    """What the vision tower of a model's folder takes; None where its config.json does not tell."""
    config = read_json(folder / "config.json")
    vision = config.get("vision_config") if isinstance(config, dict) else None
    return _cut(vision, CUTS[family], "spatial_merge_size")


def cut_of_processor(folder: Path) -> Cut | None:
    """How the image processor of a model's folder cuts;

    None where there is none that can be read.
    """
    own = read_json(folder / "preprocessor_config.json")
    if own is None and isinstance(both := read_json(folder / "processor_config.json"), dict):
        own = both.get("image_processor")
    return _cut(own, _OLD, "merge_size")  # the default of transformers' classes, of every family


def _cut(given: Any, default: Cut, merge: str) -> Cut | None:
    if not isinstance(given, dict):
        return None
    try:
        return Cut(
            int(given.get("patch_size", default.patch_size)),
            int(given.get(merge, default.merge_size)),
            int(given.get("temporal_patch_size", default.temporal_patch_size)),
        )
    except (TypeError, ValueError):
        return None
