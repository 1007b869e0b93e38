"""Qwen3-VL: what our code must know about it, and no more."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from vtool.models.families import Family, rope


class Qwen3VL(Family):
    """Qwen3-VL (arXiv 2511.21631), transformers' `Qwen3VLForConditionalGeneration`.

    DeepStack (arXiv 2406.04334): features of some of the tower's blocks are added to the hidden states behind the first layers.
    """

    model_type = "qwen3_vl"
    classes = "Qwen3VL"
    processor = "Qwen3VLProcessor"
    video_processor = "Qwen3VLVideoProcessor"
    frames_are_sized = False
    projector = ("merger", "deepstack_merger_list")

    def text_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        head_dim = table["hidden"] // table["heads"]
        return {"head_dim": head_dim, "rope_parameters": rope(head_dim, mrope_interleaved=True)}

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        depth = table["vision_depth"]
        stacked = {"deepstack_visual_indexes": [depth // 2 - 1, depth - 1], "num_position_embeddings": table["vision_positions"]}
        return super().vision_config(table) | stacked

    def features(self, output: Any) -> Iterator[Tensor]:
        yield from super().features(output)
        for level in output.deepstack_features:
            yield from level
