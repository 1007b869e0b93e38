"""Qwen2.5-VL: what our code must know about it, and no more."""

from collections.abc import Mapping
from typing import Any

from vtool.models.families import Family


class Qwen25VL(Family):
    """Qwen2.5-VL (arXiv 2502.13923), transformers' `Qwen2_5_VLForConditionalGeneration`:

    a tower with windows and a gated MLP.
    """

    model_type = "qwen2_5_vl"
    classes = "Qwen2_5_VL"
    processor = "Qwen2_5_VLProcessor"
    seconds_per_grid = True

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        windows = {
            "window_size": 8 * self.images.patch_size,
            "fullatt_block_indexes": [table["vision_depth"] - 1],
        }
        return super().vision_config(table) | windows
