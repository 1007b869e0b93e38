"""Qwen3.5, transformers' `Qwen3_5ForConditionalGeneration`."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from vtool.families.family import Family, interpolation, rope
from vtool.families.frames import FrameRequest, sample_evenly, text_with_middle_times
from vtool.families.tokens import TokenNames

_ROTATED = 0.5


class Qwen35(Family):
    """Qwen3.5: most layers are gated delta nets (arXiv 2412.06464), some attend.

    Without their special kernels transformers computes the gated delta rule in float32, whatever
    the model's dtype.
    """

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

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        return super().vision_config(table) | {"num_position_embeddings": table["vision_positions"]}

    def tower_index(self, vision: Any, grids: Tensor) -> dict[str, Tensor]:
        return super().tower_index(vision, grids) | interpolation(vision, grids)

    def sample_frames(self, request: FrameRequest) -> list[int]:
        return sample_evenly(request)

    def video_text(
        self, names: TokenNames, indices: Sequence[int], rate: float, frames_per_patch: int
    ) -> str:
        return text_with_middle_times(names, indices, rate, frames_per_patch)
