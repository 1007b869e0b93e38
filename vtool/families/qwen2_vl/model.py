"""Qwen2-VL, transformers' `Qwen2VLForConditionalGeneration`."""

from collections.abc import Mapping
from typing import Any

from vtool.families.family import Family


class Qwen2VL(Family):
    """Qwen2-VL: its vision config's `hidden_size` is what comes out of the tower."""

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        return super().vision_config(table) | {
            "embed_dim": table["vision_hidden"],
            "mlp_ratio": table["vision_intermediate"] // table["vision_hidden"],
            "hidden_size": table["hidden"],
        }
