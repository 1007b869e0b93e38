"""Qwen2-VL: what our code must know about it, and no more."""

from collections.abc import Mapping
from typing import Any

from vtool.models.families import Family


class Qwen2VL(Family):
    """Qwen2-VL (arXiv 2409.12191), transformers' `Qwen2VLForConditionalGeneration`."""

    model_type = "qwen2_vl"
    classes = "Qwen2VL"
    processor = "Qwen2VLProcessor"

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        """Its `hidden_size` is what comes out of the tower."""
        return super().vision_config(table) | {
            "embed_dim": table["vision_hidden"],
            "mlp_ratio": table["vision_intermediate"] // table["vision_hidden"],
            "hidden_size": table["hidden"],
        }
