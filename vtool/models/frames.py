"""Which frames of a video are shown, how large, and how they are cut: as the video processors of
transformers 5.23 do it.

Those need torchvision, which does not import beside a CPU torch. Here frames go through the image
processor's own functions instead.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def evenly_in_pairs(
    total: int, rate: float, fps: float, least: int, most: int, together: int
) -> list[int]:
    """Qwen2-VL and Qwen2.5-VL (video_processing_qwen2_vl.py, `sample_frames`):

    a multiple of `together`, from the first frame on.
    """
    if total < together:
        return list(range(total))
    most = min(most, total) // together * together
    count = (
        math.floor(min(max(total / rate * fps, least), most, total) / together) * together
        or together
    )
    picked: list[int] = torch.arange(0, total, total / count).int().tolist()
    return picked[:count]


def evenly(total: int, rate: float, fps: float, least: int, most: int) -> list[int]:
    """Qwen3-VL and Qwen3.5 (video_processing_qwen3_vl.py, `sample_frames`):

    from the first frame to the last.
    """
    count = int(min(max(total / rate * fps, least), most, total))
    picked: list[int] = np.linspace(0, total - 1, count).round().astype(int).tolist()
    return picked


def by_seconds(
    total: int, rate: float, fps: float, most: int, seconds: float, together: int
) -> list[int]:
    """GLM-4V (video_processing_glm4v.py, `sample_frames`): the frame that is there at each tick,
    none of them twice.

    Of a video that is longer than `seconds`, `most` frames at equal distances.
    """
    last, duration = total - 1, total / rate
    if duration <= seconds:
        # two ticks to a frame meet each of them; more take longer, and meet no others
        fps = min(fps, 2 * rate)
        picked = [
            min(last, math.ceil(tick * rate / fps))
            for tick in range(max(math.floor(duration * fps), 1))
        ]
    elif most >= total:
        picked = list(range(total))
    else:
        picked = [min(last, math.ceil(second * rate)) for second in np.linspace(0, duration, most)]
    once = list(dict.fromkeys(picked))
    return once + once[-1:] * (-len(once) % together)


def patches(
    frames: Sequence[np.ndarray], patch: int, merge: int, together: int
) -> tuple[Tensor, tuple[int, int, int]]:
    """Cut frames of a size into patches, `together` frames deep, in the order of the image
    processors, which do the same with one picture.

    Args:
        frames: float32 [3, H, W] each, of whole blocks of `merge` × `merge` patches. The last one
            is repeated to fill up a patch.

    Returns:
        float32 [T · H/patch · W/patch, 3 · together · patch²], and patches along time, height and
        width.
    """
    filled = [*frames, *[frames[-1]] * (-len(frames) % together)]
    video = torch.from_numpy(np.stack(filled))
    colours, height, width = video.shape[1:]
    t, h, w = len(filled) // together, height // patch, width // patch
    blocks = video.view(t, together, colours, h // merge, merge, patch, w // merge, merge, patch)
    return blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(
        t * h * w, colours * together * patch**2
    ), (t, h, w)
