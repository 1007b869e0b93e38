"""Qwen3-VL, transformers' `Qwen3VLForConditionalGeneration`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from vtool.families.family import Family, interpolation, rope
from vtool.families.frames import FrameRequest, sample_evenly, text_with_middle_times
from vtool.families.tokens import TokenNames
from vtool.releases import features_by_image


class Qwen3VL(Family):
    """Qwen3-VL, with DeepStack (arXiv 2406.04334).

    Features of some of the tower's blocks are added to the hidden states behind the first layers.
    """

    def text_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        head_dim = table["hidden"] // table["heads"]
        return {"head_dim": head_dim, "rope_parameters": rope(head_dim, mrope_interleaved=True)}

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        depth = table["vision_depth"]
        return super().vision_config(table) | {
            "deepstack_visual_indexes": [depth // 2 - 1, depth - 1],
            "num_position_embeddings": table["vision_positions"],
        }

    def tower_index(self, vision: Any, grids: Tensor) -> dict[str, Tensor]:
        return super().tower_index(vision, grids) | interpolation(vision, grids)

    def sample_frames(self, request: FrameRequest) -> list[int]:
        return sample_evenly(request)

    def video_text(
        self, names: TokenNames, indices: Sequence[int], rate: float, frames_per_patch: int
    ) -> str:
        return text_with_middle_times(names, indices, rate, frames_per_patch)

    def features(self, output: Any) -> Iterator[Tensor]:
        yield from super().features(output)
        for level in features_by_image(output):
            yield from level

    def split(self, output: Any, images: int) -> tuple[Any, Any]:
        outputs = super().split(output, images)
        for one, own in zip(outputs, (slice(images), slice(images, None)), strict=True):
            one.deepstack_features = [level[own] for level in features_by_image(output)]
        return outputs
