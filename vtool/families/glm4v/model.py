"""GLM-4.1V, transformers' `Glm4vForConditionalGeneration`."""

from collections.abc import Mapping, Sequence
from typing import Any

from vtool.families.family import Family, rope
from vtool.families.frames import FrameRequest, sample_by_time
from vtool.families.tokens import TokenNames

_ROTATED = 0.5


class Glm4v(Family):
    """GLM-4.1V: a video is sampled and written by time."""

    reads_sizes_of_images = True  # to interpolate its embeddings of places

    def text_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        rotated = rope(table["hidden"] // table["heads"], _ROTATED, partial_rotary_factor=_ROTATED)
        # transformers' q, k and v always have biases, and it reads no such field; vLLM has them
        # only where this says so (glm4.py, `qkv_bias`), and leaves those of the file unread.
        # Published folders have it.
        return {"rope_parameters": rotated, "attention_bias": True}

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        side = round(table["vision_positions"] ** 0.5)
        return super().vision_config(table) | {"image_size": side * self.facts.patches.patch_size}

    def sample_frames(self, request: FrameRequest) -> list[int]:
        return sample_by_time(request)

    def video_text(
        self, names: TokenNames, indices: Sequence[int], rate: float, frames_per_patch: int
    ) -> str:
        """Return a run of image tokens for each patch of frames, before its first whole second.

        processing_glm4v.py, `replace_video_token`.
        """
        return "".join(
            f"{names.vision_start}{names.image}{names.vision_end}{int(first / rate)}"
            for first in indices[::frames_per_patch]
        )
