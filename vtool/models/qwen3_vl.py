"""Qwen3-VL: what our code must know about it, and no more."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from vtool.models.families import Family, rope
from vtool.models.frames import evenly
from vtool.models.tokens import TokenNames


class Qwen3VL(Family):
    """Qwen3-VL (arXiv 2511.21631), transformers' `Qwen3VLForConditionalGeneration`.

    DeepStack (arXiv 2406.04334): features of some of the tower's blocks are added to the hidden
    states behind the first layers.
    """

    model_type = "qwen3_vl"
    classes = "Qwen3VL"
    processor = "Qwen3VLProcessor"
    video_processor = "Qwen3VLVideoProcessor"
    frames_apart = True
    projector = ("merger", "deepstack_merger_list")

    def text_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        head_dim = table["hidden"] // table["heads"]
        return {"head_dim": head_dim, "rope_parameters": rope(head_dim, mrope_interleaved=True)}

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        depth = table["vision_depth"]
        stacked = {
            "deepstack_visual_indexes": [depth // 2 - 1, depth - 1],
            "num_position_embeddings": table["vision_positions"],
        }
        return super().vision_config(table) | stacked

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
        return evenly(total, rate, fps, least, most)

    def video_text(
        self, names: TokenNames, indices: Sequence[int], rate: float, together: int
    ) -> str:
        return timed_frames(names, indices, rate, together)

    def features(self, output: Any) -> Iterator[Tensor]:
        yield from super().features(output)
        for level in output.deepstack_features:
            yield from level

    def split(self, output: Any, images: int) -> tuple[Any, Any]:
        parts = super().split(output, images)
        for part, own in zip(parts, (slice(images), slice(images, None)), strict=True):
            part.deepstack_features = [level[own] for level in output.deepstack_features]
        return parts


def timed_frames(names: TokenNames, indices: Sequence[int], rate: float, together: int) -> str:
    """Each patch's frames with the middle of their time (processing_qwen3_vl.py,
    `replace_video_token`), inside the template's marks.
    """
    filled = [*indices, *[indices[-1]] * (-len(indices) % together)]
    times = (
        (first / rate + last / rate) / 2
        for first, last in zip(filled[::together], filled[together - 1 :: together], strict=True)
    )
    return "".join(
        f"<{time:.1f} seconds>{names.vision_start}{names.video}{names.vision_end}" for time in times
    )
