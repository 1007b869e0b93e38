"""The video processor: which frames of a video are shown, and what the vision tower is given."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vtool.config.schema import Video
from vtool.families.family import Family
from vtool.families.frames import FrameRequest
from vtool.model_folder import VIDEO_SETTINGS_FILE
from vtool.models.patches import byte_values

_NO_BOUND = 2**31
_FRAME_SETTINGS = (
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
    """A video processor, which does what transformers' class of the family does.

    With torchvision that class makes the patches; without it, the functions of the image processor
    by PIL do, frame by frame.
    """

    family: Family
    frames: Any
    """Transformers' image processor with the video's settings: it processes each frame."""
    min_pixels: int
    max_pixels: int
    """The most pixels of each frame, or of all together (`VideoDefaults.bounds_are_total`)."""
    fps: float
    min_frames: int
    max_frames: int | None
    max_seconds: float | None
    capped_tokens: int | None = None
    """With `cap_pixels_per_frame`, the image tokens that frames share, or that each may have."""

    @property
    def frames_per_patch(self) -> int:
        """The frames in a patch."""
        return int(self.frames.temporal_patch_size)

    def most_frames(self, fps: float) -> int:
        """Return the most frames, at least one, that are shown of a file at this rate."""
        by_time = (
            _NO_BOUND if self.max_seconds is None else max(round(self.max_seconds * fps, 6), 1)
        )
        by_count = _NO_BOUND if self.max_frames is None else self.max_frames
        return int(min(by_time, by_count, _NO_BOUND))

    @property
    def usual_fps(self) -> float:
        """The family's own rate, or the one that is set, if that is higher."""
        return max(self.fps, self.family.facts.video.fps)

    def most_listed_frames(self, rate: float) -> int:
        """Return the most frames of a list with so many per second.

        As many as of a file at that rate, or at the usual one: seconds alone would refuse a
        time-lapse, three frames of which may span an hour.
        """
        return self.most_frames(max(rate, self.usual_fps))

    def sample(self, total: int, rate: float, fps: float | None = None) -> list[int]:
        """Return the indices of the frames that are shown of a file.

        Args:
            total: the frames of the file.
            rate: its frames per second.
            fps: the frames that are wanted of each second; None: those of the settings.
        """
        wanted = fps or self.fps
        seconds = math.inf if self.max_seconds is None else self.max_seconds
        if self.max_frames is not None:
            seconds = min(seconds, self.max_frames / wanted)
        return self.family.sample_frames(
            FrameRequest(
                total=total,
                rate=rate,
                fps=wanted,
                min_frames=self.min_frames,
                max_frames=self.most_frames(wanted),
                max_seconds=seconds,
                frames_per_patch=self.frames_per_patch,
            )
        )

    def cut(
        self, frames: Sequence[Any], *, as_bytes: bool = False
    ) -> tuple[Tensor, tuple[int, int, int]]:
        """Return the patches of the frames of a video, PIL images of one size.

        Args:
            as_bytes: leave them as bytes, where there are `byte_values` of `self.frames`.

        Returns:
            float32 [P, W] or uint8 [P, W], and the number of patches along time, height and width.

        Raises:
            ValueError: an extreme aspect ratio.
        """
        from transformers.image_processing_backends import PilBackend
        from transformers.image_utils import SizeDict

        own = self.frames
        as_bytes = as_bytes and byte_values(own) is not None
        if own.backend == "torchvision":
            return self._cut_by_torchvision(frames, as_bytes)
        size = self.size(len(frames), frames[0].height, frames[0].width)
        processed: list[np.ndarray] = []
        for frame in frames:
            pixels = own.process_image(frame, do_convert_rgb=True)
            if own.do_resize:
                # Not the image processor's, which would find a size by itself: what that calls.
                pixels = PilBackend.resize(
                    own, pixels, SizeDict(height=size[0], width=size[1]), own.resample
                )
            if as_bytes:
                processed.append(np.asarray(pixels))
                continue
            if own.do_rescale:
                pixels = own.rescale(pixels, own.rescale_factor)
            if own.do_normalize:
                pixels = own.normalize(pixels, own.image_mean, own.image_std)
            processed.append(np.asarray(pixels, dtype=np.float32))
        return cut_into_patches(processed, own.patch_size, own.merge_size, self.frames_per_patch)

    def _cut_by_torchvision(
        self, frames: Sequence[Any], as_bytes: bool
    ) -> tuple[Tensor, tuple[int, int, int]]:
        shown = [*frames, *[frames[-1]] * (self.frames_per_patch - len(frames))]
        own = self.family.video_processor_class()(**self.as_json())
        raw = {"do_rescale": False, "do_normalize": False} if as_bytes else {}
        pixels = torch.from_numpy(np.stack([np.asarray(frame) for frame in shown]))
        made = own(
            videos=[pixels.permute(0, 3, 1, 2)],
            do_sample_frames=False,
            return_tensors="pt",
            **raw,
        )
        t, h, w = made["video_grid_thw"][0].tolist()
        return made["pixel_values_videos"], (t, h, w)

    def size(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Return the height and width in pixels to which the `count` frames of a video are resized.

        Raises:
            ValueError: an extreme aspect ratio.
        """
        from transformers.models.glm4v.image_processing_pil_glm4v import (
            smart_resize as resize_all_frames,
        )
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            smart_resize as resize_one_frame,
        )

        factor, smallest, largest = (
            self.frames.patch_size * self.frames.merge_size,
            self.min_pixels,
            self.max_pixels,
        )
        found: tuple[int, int]
        if not self.family.facts.video.bounds_are_total:
            if self.capped_tokens is not None:
                share = int(self.capped_tokens * factor**2 * 0.9) * self.frames_per_patch // count
                largest = max(min(largest, share), int(smallest * 1.05))
            found = resize_one_frame(height, width, factor, smallest, largest)
        else:
            if self.capped_tokens is not None:
                share = min(self.capped_tokens * factor**2, largest // count)
                largest = max(share, int(smallest * 1.05)) * count
            # a single frame is repeated, where transformers would refuse it
            depth = self.frames_per_patch
            shown = max(count, depth)
            found = resize_all_frames(shown, height, width, depth, factor, smallest, largest)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the settings as transformers' own class reads them from a folder.

        With them a server samples and resizes as the training did.
        """
        own = self.frames.to_dict()
        settings = {name: own[name] for name in _FRAME_SETTINGS} | {
            "size": {"shortest_edge": self.min_pixels, "longest_edge": self.max_pixels},
            "fps": self.fps,
            "do_sample_frames": True,
        }
        if self.max_seconds is not None:
            seconds = (
                self.max_seconds
                if self.max_frames is None
                else min(self.max_seconds, self.max_frames / self.fps)
            )
            settings["max_duration"] = int(seconds) if seconds == int(seconds) else seconds
        else:
            settings |= {"min_frames": self.min_frames, "max_frames": self.max_frames}
            settings["cap_pixels_per_frame"] = self.capped_tokens is not None
            if self.capped_tokens is not None:
                settings["max_video_tokens"] = self.capped_tokens
        return settings | {
            "video_processor_type": self.family.facts.video_processor,
            "processor_class": self.family.facts.processor,
        }

    def save(self, folder: Path) -> None:
        """Write the settings into a folder as transformers reads them."""
        (folder / VIDEO_SETTINGS_FILE).write_text(
            json.dumps(self.as_json(), indent=2, sort_keys=True) + "\n"
        )

    def with_settings(self, settings: Video) -> "VideoProcessor":
        """Return a copy with what a recipe sets (`data.video`)."""
        given = settings.model_dump(exclude_none=True)
        changed = replace(self, **given)
        if settings.max_frames is None or changed.max_seconds is None:
            return changed
        return replace(
            changed, max_seconds=max(changed.max_seconds, settings.max_frames / changed.fps)
        )


def video_processor(
    family: Family, given: Mapping[str, Any], backend: str = "pil"
) -> VideoProcessor:
    """Build a video processor.

    Args:
        family: has the defaults of transformers' class.
        given: the settings in a folder's JSON file.
        backend: `torchvision` or `pil`.

    Raises:
        ValueError, TypeError, KeyError: settings of another kind.
    """
    default = family.facts.video
    frames: dict[str, Any] = asdict(family.facts.patches)
    if default.mean_and_std is not None:
        frames |= dict.fromkeys(("image_mean", "image_std"), [default.mean_and_std] * 3)
    frames |= {name: given[name] for name in _FRAME_SETTINGS if given.get(name) is not None}
    size = {**(given.get("size") or {})}
    for edge, older in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        if given.get(older) is not None:
            size[edge] = given[older]
    seconds = given.get("max_duration") or default.max_seconds
    most = given.get("max_frames") or default.max_frames
    capped = given.get("max_video_tokens") or default.capped_tokens
    return VideoProcessor(
        family=family,
        frames=family.image_processor_class(backend)(**frames),
        min_pixels=int(size.get("shortest_edge", default.min_pixels)),
        max_pixels=int(size.get("longest_edge", default.max_pixels)),
        fps=float(given.get("fps") or default.fps),
        min_frames=int(given.get("min_frames") or default.min_frames),
        max_frames=None if default.max_frames is None or most is None else int(most),
        max_seconds=None if default.max_seconds is None or seconds is None else float(seconds),
        capped_tokens=capped if given.get("cap_pixels_per_frame") else None,
    )


def cut_into_patches(
    frames: Sequence[np.ndarray], patch: int, merge: int, frames_per_patch: int
) -> tuple[Tensor, tuple[int, int, int]]:
    """Cut the frames of a video into patches, in the order of the image processors.

    Args:
        frames: float32 or uint8 [3, H, W] each, of whole blocks of `merge` × `merge` patches. The
            last one is repeated to fill up a patch.
        patch: pixels along a side of a patch.
        merge: patches along a side of an image token.
        frames_per_patch: the frames in a patch.

    Returns:
        [T · H/patch · W/patch, 3 · frames_per_patch · patch²] in their dtype, and the number of
        patches along time, height and width.
    """
    depth = frames_per_patch
    video = torch.from_numpy(np.stack([*frames, *[frames[-1]] * (-len(frames) % depth)]))
    colors, height, width = video.shape[1:]
    t, h, w = len(video) // depth, height // patch, width // patch
    blocks = video.view(t, depth, colors, h // merge, merge, patch, w // merge, merge, patch)
    patches = blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return patches.reshape(t * h * w, colors * depth * patch**2), (t, h, w)
