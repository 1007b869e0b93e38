"""Qwen2.5-VL, transformers' `Qwen2_5_VLForConditionalGeneration`."""

from collections.abc import Mapping
from typing import Any

from vtool.families.family import Family


class Qwen25VL(Family):
    """Qwen2.5-VL: a tower with windows and a gated MLP."""

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        return super().vision_config(table) | {
            "window_size": 8 * self.facts.patches.patch_size,
            "fullatt_block_indexes": [table["vision_depth"] - 1],
        }
