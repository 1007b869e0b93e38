"""Qwen2.5-VL: what differs from Qwen2-VL."""

from collections.abc import Mapping
from typing import Any

from vtool.models.qwen2_vl import Qwen2VL


class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL (arXiv 2502.13923), transformers' `Qwen2_5_VLForConditionalGeneration`: a tower with windows and a gated MLP."""

    model_type = "qwen2_5_vl"
    processor = "Qwen2_5_VLProcessor"

    def model_class(self) -> Any:
        from transformers import Qwen2_5_VLForConditionalGeneration

        return Qwen2_5_VLForConditionalGeneration

    def config_class(self) -> Any:
        from transformers import Qwen2_5_VLConfig

        return Qwen2_5_VLConfig

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        return {
            "depth": table["vision_depth"],
            "hidden_size": table["vision_hidden"],
            "intermediate_size": table["vision_intermediate"],
            "num_heads": table["vision_heads"],
            "patch_size": self.images.patch_size,
            "spatial_merge_size": self.images.merge_size,
            "temporal_patch_size": self.images.temporal_patch_size,
            "window_size": 8 * self.images.patch_size,
            "fullatt_block_indexes": [table["vision_depth"] - 1],
            "out_hidden_size": table["hidden"],
        }
