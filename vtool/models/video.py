"""The video processor:

which frames of a video are shown, and what the vision tower is given of them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vtool.config.images import CLIPS, read_json
from vtool.config.schema import Video
from vtool.models.families import Family
from vtool.models.frames import patches

FILE = "video_preprocessor_config.json"
_NO_BOUND = 2**31
_OF_FRAMES = (
    "patch_size",
    "merge_size",
    "temporal_patch_size",
    "do_resize",
    "resample",
    "do_rescale",
    "rescale_factor",
    "do_normalize",
    "image_mean",
    "image_std",
    "do_convert_rgb",
)


@dataclass(frozen=True, slots=True)
class VideoProcessor:
    """What transformers' video processor of the family does, without torchvision."""

    family: Family
    frames: Any
    """Transformers' image processor, with the video's settings:

    it resizes, rescales and normalises each frame.
    """
    smallest: int
    largest: int
    """Pixels: of a frame, or of all frames of a video together (`Family.frames_are_sized`)."""
    fps: float
    min_frames: int
    max_frames: int | None
    max_seconds: float | None
    capped_tokens: int | None = None
    """With `cap_pixels_per_frame`, the image tokens that frames share, or that each may have."""

    @property
    def together(self) -> int:
        """The frames of a patch."""
        return int(self.frames.temporal_patch_size)

    def most(self, fps: float) -> int:
        """The most frames that are shown of a file at this rate: one at least."""
        by_time = (
            _NO_BOUND if self.max_seconds is None else max(round(self.max_seconds * fps, 6), 1)
        )
        by_count = _NO_BOUND if self.max_frames is None else self.max_frames
        return int(min(by_time, by_count, _NO_BOUND))

    @property
    def usual_fps(self) -> float:
        """The family's own rate, or the one that is set, if that is higher."""
        return max(self.fps, CLIPS[self.family.model_type].fps)

    def most_listed(self, rate: float) -> int:
        """The most frames of a list with so many a second: as many as of a file at that rate, or at
        the usual one.

        Seconds alone would refuse a time-lapse, three frames of which may be an hour.
        """
        return self.most(max(rate, self.usual_fps))

    def sample(self, total: int, rate: float, fps: float | None = None) -> list[int]:
        """The numbers of the frames that are shown of a video of `total` frames, `rate` a second."""
        wanted = fps or self.fps
        seconds = math.inf if self.max_seconds is None else self.max_seconds
        if self.max_frames is not None:
            seconds = min(seconds, self.max_frames / wanted)
        return self.family.sample(
            total, rate, wanted, self.min_frames, self.most(wanted), seconds, self.together
        )

    def cut(self, frames: Sequence[Any]) -> tuple[Tensor, tuple[int, int, int]]:
        """Patches float32 [P, W] of the frames of a video, PIL images of one size, and their grid
        along time, height and width.

        Raises:
            ValueError: an extreme aspect ratio.
        """
        from transformers.image_processing_backends import PilBackend
        from transformers.image_utils import SizeDict

        own = self.frames
        size = self.size(len(frames), frames[0].height, frames[0].width)
        made: list[np.ndarray] = []
        for frame in frames:
            pixels = own.process_image(frame, do_convert_rgb=True)
            if own.do_resize:
                # Not the image processor's, which would find a size by itself: what that calls.
                pixels = PilBackend.resize(
                    own, pixels, SizeDict(height=size[0], width=size[1]), own.resample
                )
            if own.do_rescale:
                pixels = own.rescale(pixels, own.rescale_factor)
            if own.do_normalize:
                pixels = own.normalize(pixels, own.image_mean, own.image_std)
            made.append(np.asarray(pixels, dtype=np.float32))
        return patches(made, own.patch_size, own.merge_size, self.together)

    def size(self, count: int, height: int, width: int) -> tuple[int, int]:
        """The height and width in pixels to which the frames of a video are brought, of which there
        are `count`.
        """
        from transformers.models.glm4v.image_processing_pil_glm4v import (
            smart_resize as of_all_frames,
        )
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            smart_resize as of_a_frame,
        )

        factor, largest = self.frames.patch_size * self.frames.merge_size, self.largest
        found: tuple[int, int]
        if self.family.frames_are_sized:
            if self.capped_tokens is not None:
                share = int(self.capped_tokens * factor**2 * 0.9) * self.together // count
                largest = max(min(largest, share), int(self.smallest * 1.05))
            found = of_a_frame(height, width, factor, self.smallest, largest)
        else:
            if self.capped_tokens is not None:
                share = min(self.capped_tokens * factor**2, largest // count)
                largest = max(share, int(self.smallest * 1.05)) * count
            # a single frame is repeated, where transformers would refuse it
            shown = max(count, self.together)
            found = of_all_frames(
                shown, height, width, self.together, factor, self.smallest, largest
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """What transformers' own class is told by a folder, so that a server samples and sizes as
        the training did.
        """
        own = self.frames.to_dict()
        given = {name: own[name] for name in _OF_FRAMES}
        given |= {
            "size": {"shortest_edge": self.smallest, "longest_edge": self.largest},
            "fps": self.fps,
            "do_sample_frames": True,
        }
        if self.max_seconds is not None:
            seconds = (
                self.max_seconds
                if self.max_frames is None
                else min(self.max_seconds, self.max_frames / self.fps)
            )
            given["max_duration"] = int(seconds) if seconds == int(seconds) else seconds
        else:
            given |= {"min_frames": self.min_frames, "max_frames": self.max_frames}
            given |= {"cap_pixels_per_frame": self.capped_tokens is not None}
            given |= (
                {"max_video_tokens": self.capped_tokens} if self.capped_tokens is not None else {}
            )
        return given | {
            "video_processor_type": self.family.video_processor,
            "processor_class": self.family.processor,
        }

    def save(self, folder: Path) -> None:
        """Write it as transformers reads it."""
        (folder / FILE).write_text(json.dumps(self.as_json(), indent=2, sort_keys=True) + "\n")

    def with_settings(self, settings: Video) -> "VideoProcessor":
        """The same, told what a recipe says."""
        named: dict[str, Any] = {
            "smallest": settings.min_pixels,
            "largest": settings.max_pixels,
            "fps": settings.fps,
            "max_frames": settings.max_frames,
        }
        told = replace(self, **{name: value for name, value in named.items() if value is not None})
        if settings.max_frames is None or told.max_seconds is None:
            return told
        return replace(told, max_seconds=max(told.max_seconds, settings.max_frames / told.fps))


def video_processor(known: Family, given: Mapping[str, Any]) -> VideoProcessor:
    """From the settings in a folder's JSON file; what it does not say is as in transformers' class.

    Raises:
        ValueError, TypeError, KeyError: settings of another kind.
    """
    clip = CLIPS[known.model_type]
    cut = known.images
    frames: dict[str, Any] = {
        "patch_size": cut.patch_size,
        "merge_size": cut.merge_size,
        "temporal_patch_size": cut.temporal_patch_size,
    }
    if clip.colours is not None:
        frames |= {"image_mean": [clip.colours] * 3, "image_std": [clip.colours] * 3}
    frames |= {name: given[name] for name in _OF_FRAMES if given.get(name) is not None}
    size = {**(given.get("size") or {})}
    for edge, older in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        if given.get(older) is not None:
            size[edge] = given[older]
    seconds, most = (
        given.get("max_duration") or clip.max_seconds,
        given.get("max_frames") or clip.max_frames,
    )
    capped = given.get("max_video_tokens") or clip.capped_tokens
    return VideoProcessor(
        family=known,
        frames=known.image_processor_class()(**frames),
        smallest=int(size.get("shortest_edge", clip.smallest)),
        largest=int(size.get("longest_edge", clip.largest)),
        fps=float(given.get("fps") or clip.fps),
        min_frames=int(given.get("min_frames") or clip.min_frames),
        max_frames=None if clip.max_frames is None or most is None else int(most),
        max_seconds=None if clip.max_seconds is None or seconds is None else float(seconds),
        capped_tokens=capped if given.get("cap_pixels_per_frame") else None,
    )


def settings_in(folder: Path) -> dict[str, Any]:
    """What a folder says of videos, looked for where transformers looks, in its order;

    of images, where it says nothing of videos.
    """
    both = read_json(folder / "processor_config.json")
    if isinstance(both, dict) and isinstance(own := both.get("video_processor"), dict):
        return own
    for name in (FILE, "preprocessor_config.json"):
        if isinstance(own := read_json(folder / name), dict):
            return own
    return both.get("image_processor") or {} if isinstance(both, dict) else {}
