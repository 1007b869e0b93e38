"""Qwen2-VL: what our code must know about it, and no more."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from vtool.models.families import ImageDefaults
from vtool.models.sizes import SIZES
from vtool.models.tokens import TokenIds


class Qwen2VL:
    """Qwen2-VL (arXiv 2409.12191), transformers' `Qwen2VLForConditionalGeneration`."""

    model_type = "qwen2_vl"
    processor = "Qwen2VLProcessor"
    images = ImageDefaults(patch_size=14, merge_size=2, temporal_patch_size=2)

    def model_class(self) -> Any:
        from transformers import Qwen2VLForConditionalGeneration

        return Qwen2VLForConditionalGeneration

    def config_class(self) -> Any:
        """The transformers config class."""
        from transformers import Qwen2VLConfig

        return Qwen2VLConfig

    def image_processor_class(self) -> Any:
        from transformers import Qwen2VLImageProcessorPil

        return Qwen2VLImageProcessorPil

    def random_config(self, size: str, vocab_size: int, ids: TokenIds) -> Any:
        table = SIZES[self.model_type][size]
        head_dim = table["hidden"] // table["heads"]
        # Multimodal rotary positions: the head's frequencies are shared out over time, height and width.
        side = head_dim // 6
        text = {
            "vocab_size": vocab_size,
            "hidden_size": table["hidden"],
            "intermediate_size": table["intermediate"],
            "num_hidden_layers": table["layers"],
            "num_attention_heads": table["heads"],
            "num_key_value_heads": table["kv_heads"],
            "max_position_embeddings": table["positions"],
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [head_dim // 2 - 2 * side, side, side]},
            "eos_token_id": ids.end,
            "pad_token_id": ids.pad,
            "bos_token_id": None,
        }
        return self.config_class()(
            text_config=text,
            vision_config=self.vision_config(table),
            tie_word_embeddings=True,
            image_token_id=ids.image,
            video_token_id=ids.video,
            vision_start_token_id=ids.vision_start,
            vision_end_token_id=ids.vision_end,
        )

    def vision_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        """The tower of a random model: `hidden_size` is what comes out of it."""
        return {
            "depth": table["vision_depth"],
            "embed_dim": table["vision_hidden"],
            "mlp_ratio": table["vision_intermediate"] // table["vision_hidden"],
            "num_heads": table["vision_heads"],
            "hidden_size": table["hidden"],
            "patch_size": self.images.patch_size,
            "spatial_merge_size": self.images.merge_size,
            "temporal_patch_size": self.images.temporal_patch_size,
        }

    def part(self, name: str) -> str:
        if "model.visual.merger." in name:
            return "projector"
        return "vision" if "model.visual." in name else "language"

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        inner: Any = model.model
        return [*inner.visual.blocks, inner.visual, *inner.language_model.layers]

    def dummy_visual(self, model: nn.Module, device: torch.device) -> torch.Tensor:
        """Run the tower on the smallest image of zeros, and keep 0 of it (verl#5881: added out of place, once)."""
        visual: Any = model.model.visual  # type: ignore[union-attr]
        config = visual.config
        side = config.spatial_merge_size
        width = config.in_channels * config.temporal_patch_size * config.patch_size**2
        patches = torch.zeros(side * side, width, device=device, dtype=next(visual.parameters()).dtype)
        grid = torch.tensor([[1, side, side]], device=device)
        zero: torch.Tensor = 0.0 * visual(patches, grid_thw=grid).pooler_output.sum()
        return zero

    def serving_files(self, image_processor: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """What the processor's `save_pretrained` would write; it cannot be built where torchvision is not."""
        image = {**image_processor, "image_processor_type": "Qwen2VLImageProcessor", "processor_class": self.processor}
        kept = ("size", "patch_size", "merge_size", "temporal_patch_size", "do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
        video = {key: image[key] for key in (*kept, "rescale_factor", "image_mean", "image_std", "resample")}
        video |= {"video_processor_type": "Qwen2VLVideoProcessor", "processor_class": self.processor}
        return {"preprocessor_config.json": image, "video_preprocessor_config.json": video}
