"""GLM-4V: what our code must know about it, and no more."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vtool.models.families import Family, rope
from vtool.models.frames import by_seconds
from vtool.models.tokens import TokenNames

_ROTATED = 0.5


class Glm4v(Family):
    """GLM-4.1V (arXiv 2507.01006), transformers' `Glm4vForConditionalGeneration`:

    a convolution stands before the merger.
    """

    model_type = "glm4v"
    classes = "Glm4v"
    processor = "Glm4vProcessor"
    image_processor = "Glm4vImageProcessor"
    video_processor = "Glm4vVideoProcessor"
    frames_apart = True
    videos_are_images = True  # modeling_glm4v.py, `get_placeholder_mask`
    projector = ("merger", "downsample")
    token_names = TokenNames(
        "<|image|>",
        "<|video|>",
        "<|begin_of_image|>",
        "<|end_of_image|>",
        "<|begin_of_video|>",
        "<|end_of_video|>",
    )
    token_fields: ClassVar[Mapping[str, str]] = {
        "image": "image_token_id",
        "video": "video_token_id",
        "vision_start": "image_start_token_id",
        "vision_end": "image_end_token_id",
        "video_start": "video_start_token_id",
        "video_end": "video_end_token_id",
    }
    # a picture stands in for both frames of a patch (image_processing_pil_glm4v.py, `smart_resize`)
    frames_per_image = 2

    def text_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        rotated = rope(table["hidden"] // table["heads"], _ROTATED, partial_rotary_factor=_ROTATED)
        # transformers' q, k and v always have biases, and it reads no such field; vLLM has them
        # only where this says so (glm4.py, `qkv_bias`), and leaves those of the file unread.
        # Published folders have it.
        return {"rope_parameters": rotated, "attention_bias": True}

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        side = round(table["vision_positions"] ** 0.5)
        return super().vision_config(table) | {"image_size": side * self.images.patch_size}

    def sample(
        self,
        total: int,
        rate: float,
        fps: float,
        least: int,
        most: int,
        seconds: float,
        together: int,
    ) -> list[int]:
        return by_seconds(total, rate, fps, most, seconds, together)

    def video_text(
        self, names: TokenNames, indices: Sequence[int], rate: float, together: int
    ) -> str:
        """Each patch's frames with the whole second of their first (processing_glm4v.py,
        `replace_video_token`).
        """
        return "".join(
            f"{names.vision_start}{names.image}{names.vision_end}{int(first / rate)}"
            for first in indices[::together]
        )
