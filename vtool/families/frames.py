"""The frames of a video that are shown, and their times in the text.

Each function does what the video processor of transformers 5.23 does, which needs torchvision.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vtool.families.tokens import TokenNames


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRequest:
    """A video file, and how many of its frames are wanted."""

    total: int
    """The frames of the file."""
    rate: float
    """The frames per second."""
    fps: float
    """The frames that are wanted of each second."""
    min_frames: int
    max_frames: int
    max_seconds: float
    """A longer video is thinned out to `max_frames`, in a family that samples by time."""
    frames_per_patch: int

    @property
    def bounded(self) -> float:
        """The frames at the wanted rate, within the bounds and those that the file has."""
        wanted = max(self.total / self.rate * self.fps, self.min_frames)
        return min(wanted, self.max_frames, self.total)


def sample_in_groups(request: FrameRequest) -> list[int]:
    """Return a multiple of `frames_per_patch` frames, at equal distances from the first on.

    Qwen2-VL and Qwen2.5-VL (video_processing_qwen2_vl.py, `sample_frames`).
    """
    total, group = request.total, request.frames_per_patch
    if total < group:
        return list(range(total))
    count = math.floor(request.bounded / group) * group or group
    indices: list[int] = torch.arange(0, total, total / count).int().tolist()
    return indices[:count]


def sample_evenly(request: FrameRequest) -> list[int]:
    """Return frames at equal distances from the first to the last.

    Qwen3-VL and Qwen3.5 (video_processing_qwen3_vl.py, `sample_frames`).
    """
    places = np.linspace(0, request.total - 1, int(request.bounded))
    indices: list[int] = places.round().astype(int).tolist()
    return indices


def sample_by_time(request: FrameRequest) -> list[int]:
    """Return the frame at each tick of `fps`, none of them twice, filling whole patches.

    Of a video that is longer than `max_seconds`, `max_frames` at equal distances. GLM-4V
    (video_processing_glm4v.py, `sample_frames`).
    """
    total, rate, most = request.total, request.rate, request.max_frames
    last, duration = total - 1, total / rate
    if duration <= request.max_seconds:
        # two ticks per frame reach each frame; more take longer, and reach no others
        fps = min(request.fps, 2 * rate)
        ticks = range(max(math.floor(duration * fps), 1))
        indices = [min(last, math.ceil(tick * rate / fps)) for tick in ticks]
    elif most >= total:
        indices = list(range(total))
    else:
        indices = [min(last, math.ceil(second * rate)) for second in np.linspace(0, duration, most)]
    once = list(dict.fromkeys(indices))
    return once + once[-1:] * (-len(once) % request.frames_per_patch)


def text_with_middle_times(
    names: TokenNames, indices: Sequence[int], rate: float, frames_per_patch: int
) -> str:
    """Return a run of tokens for each patch of frames, after the middle of its time.

    Qwen3-VL and Qwen3.5 (processing_qwen3_vl.py, `replace_video_token`); the arguments are those of
    `Family.video_text`.
    """
    filled = [*indices, *[indices[-1]] * (-len(indices) % frames_per_patch)]
    firsts, lasts = filled[::frames_per_patch], filled[frames_per_patch - 1 :: frames_per_patch]
    return "".join(
        f"<{(first / rate + last / rate) / 2:.1f} seconds>"
        f"{names.vision_start}{names.video}{names.vision_end}"
        for first, last in zip(firsts, lasts, strict=True)
    )
