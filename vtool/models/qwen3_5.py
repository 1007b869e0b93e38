"""Qwen3.5: what our code must know about it, and no more."""

from collections.abc import Mapping, Sequence
from typing import Any

from vtool.models.families import Family, rope
from vtool.models.frames import evenly
from vtool.models.qwen3_vl import timed_frames
from vtool.models.tokens import TokenNames

_ROTATED = 0.5


class Qwen35(Family):
    """Qwen3.5, transformers' `Qwen3_5ForConditionalGeneration`: most layers are gated delta nets
    (arXiv 2412.06464), some attend.

    Without their special kernels transformers computes the gated delta rule in float32, whatever
    the model's dtype.
    """

    model_type = "qwen3_5"
    classes = "Qwen3_5"
    processor = "Qwen3VLProcessor"
    video_processor = "Qwen3VLVideoProcessor"
    frames_apart = True

    def text_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        head_dim = table["hidden"] // table["heads"]
        linear_dim = table["hidden"] // table["linear_heads"]
        return {
            "head_dim": head_dim,
            "rope_parameters": rope(
                head_dim, _ROTATED, partial_rotary_factor=_ROTATED, mrope_interleaved=True
            ),
            "layer_types": ["linear_attention"] * (table["layers"] - 1) + ["full_attention"],
            "linear_num_key_heads": table["linear_heads"],
            "linear_num_value_heads": table["linear_heads"],
            "linear_key_head_dim": linear_dim,
            "linear_value_head_dim": linear_dim,
        }

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

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        return super().vision_config(table) | {"num_position_embeddings": table["vision_positions"]}
