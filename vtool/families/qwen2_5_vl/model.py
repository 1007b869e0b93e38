"""Qwen2.5-VL, transformers' `Qwen2_5_VLForConditionalGeneration`."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vtool.families.family import Family


class Qwen25VL(Family):
    """Qwen2.5-VL: a tower with windows and a gated MLP."""

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        return super().vision_config(table) | {
            "window_size": 8 * self.facts.patches.patch_size,
            "fullatt_block_indexes": [table["vision_depth"] - 1],
        }

    def tower_index(self, vision: Any, grids: Tensor) -> dict[str, Tensor]:
        from transformers.vision_utils import get_vision_window_index

        index, ends = get_vision_window_index(
            grids,
            spatial_merge_size=vision.spatial_merge_size,
            window_size=vision.window_size,
            patch_size=vision.patch_size,
        )
        windows = {"window_index": index, "cu_window_seqlens": ends}
        return super().tower_index(vision, grids) | windows
