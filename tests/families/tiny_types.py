"""Tiny configs of transformers' image-text-to-text types, and what their processors are given.

The numbers only fit each other: a processor writes as many image tokens as the tower makes
features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WIDTH, HEADS, INNER, ROOM = 64, 2, 96, 768
TOKENS = (
    *("<pad>", "<bos>", "<eos>", "<unk>", "<image>", "<video>", "<audio>"),
    *("<|im_start|>", "<|im_end|>", "<|image|>", "<|video|>", "<|image_pad|>", "<|video_pad|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|begin_of_image|>", "<|end_of_image|>"),
    *("<|begin_of_video|>", "<|end_of_video|>", "<start_of_image>", "<end_of_image>"),
    *("<image_soft_token>", "<audio_soft_token>", "<boa>", "<eoa>", "[IMG]", "[IMG_BREAK]"),
    *("[IMG_END]", "<IMG_CONTEXT>", "<img>", "</img>", "<fake_token_around_image>"),
    *("<end_of_utterance>", "<global-img>", "<|START_OF_IMG|>", "<|END_OF_IMG|>"),
    *("<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE_GLOBAL", "<IMG_START>", "<IMG_END>"),
    *("<IMG_ATOM>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<image_id>", "</image_id>"),
    *("<slice>", "</slice>", "<|image_start|>", "<|image_end|>", "<|image_thumbnail|>"),
    *("<|IMAGE_START|>", "<|IMAGE_END|>", "<|IMAGE_PLACEHOLDER|>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    *(f"TILE_{number}" for number in range(1, 13)),
    *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)),
)
IDS = {token: number for number, token in enumerate(TOKENS)}


@dataclass(frozen=True)
class Tiny:
    """A type: its config, its image processor, its processor, and its tokens."""

    config: Mapping[str, Any]
    image_processor: str | None = None
    """The name of its class; None: the one that transformers has for the type."""
    images: Mapping[str, Any] = field(default_factory=dict)
    processor: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """Attributes of the tokenizer that are tokens."""
    mark: str = "<image>"
    """The text that a chat template writes in the place of an image."""
    classes: Mapping[str, str] = field(default_factory=dict)


def text(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind,
        "vocab_size": ROOM,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": WIDTH // HEADS,
        "max_position_embeddings": 8192,
        "pad_token_id": IDS["<pad>"],
        "bos_token_id": IDS["<bos>"],
        "eos_token_id": IDS["<|im_end|>"],
        "tie_word_embeddings": False,
    } | more


def tower(kind: str, size: Any = 28, patch: Any = 14, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "image_size": size,
        "patch_size": patch,
        "projection_dim": WIDTH,
    } | more


def grid_tower(patch: int = 14, **more: Any) -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_heads": HEADS,
        "in_channels": 3,
        "patch_size": patch,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": WIDTH,
    } | more


def square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


def llava(text_kind: str = "llama", tower_kind: str = "clip_vision_model", **more: Any) -> Any:
    return {
        "text_config": text(text_kind),
        "vision_config": tower(tower_kind),
        "image_token_index": IDS["<image>"],
        "vision_feature_layer": -1,
    } | more


def idefics(kind: str) -> Tiny:
    config = {
        "text_config": text("llama"),
        "vision_config": tower(kind, size=56),
        "image_token_id": IDS["<image>"],
        "scale_factor": 2,
    }
    sizes = {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}
    return Tiny(config, images=sizes, processor={"image_seq_len": 4})


def glm(kind: str, text_kind: str) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    return {
        "text_config": text(text_kind, rope_parameters=rope | {"partial_rotary_factor": 0.5}),
        "vision_config": {"model_type": kind, **grid_tower(image_size=56)},
        "image_token_id": IDS["<|image|>"],
        "video_token_id": IDS["<|video|>"],
        "image_start_token_id": IDS["<|begin_of_image|>"],
        "image_end_token_id": IDS["<|end_of_image|>"],
        "video_start_token_id": IDS["<|begin_of_video|>"],
        "video_end_token_id": IDS["<|end_of_video|>"],
    }


ALTERNATE = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
LINEAR = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "layer_types": ["linear_attention", "full_attention"],
}
PINPOINTS = [[28, 56], [56, 28], [56, 56]]
GEMMA = {
    "image_token": "<image_soft_token>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
}
GLM = {"image_token": "<|image|>", "video_token": "<|video|>"}
GLM_MARK = "<|begin_of_image|><|image|><|end_of_image|>"
QWEN = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
QWEN_IDS = {
    "image_token_id": IDS["<|image_pad|>"],
    "video_token_id": IDS["<|video_pad|>"],
    "vision_start_token_id": IDS["<|vision_start|>"],
    "vision_end_token_id": IDS["<|vision_end|>"],
}
QWEN_MARK = "<|vision_start|><|image_pad|><|vision_end|>"
CLIP = {"size": {"shortest_edge": 28}, "crop_size": square(28)}
CLIP_TOKENS = {
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}
TILES = {"size": square(56), "crop_to_patches": True, "max_patches": 4}
ROPE = {"rope_type": "default", "rope_theta": 1e4}

TYPES: Mapping[str, Tiny] = {
    "llava": Tiny(llava(image_seq_length=4), images=CLIP, processor=CLIP_TOKENS),
    "llava_next": Tiny(
        llava(image_seq_length=4, image_grid_pinpoints=PINPOINTS),
        images=CLIP | {"image_grid_pinpoints": PINPOINTS},
        processor=CLIP_TOKENS,
    ),
    "llava_onevision": Tiny(
        llava("qwen2", video_token_index=IDS["<video>"], image_grid_pinpoints=PINPOINTS)
        | {"vision_config": tower("siglip_vision_model", vision_use_head=False)},
        images={"size": square(28), "image_grid_pinpoints": PINPOINTS},
        processor={"num_image_tokens": 4, "vision_feature_select_strategy": "full"},
    ),
    "gemma3": Tiny(
        {
            "text_config": text("gemma3_text", **ALTERNATE),
            "vision_config": tower("siglip_vision_model", size=56),
            "mm_tokens_per_image": 4,
            "image_token_index": IDS["<image_soft_token>"],
            "boi_token_index": IDS["<start_of_image>"],
            "eoi_token_index": IDS["<end_of_image>"],
        },
        images={"size": square(56)},
        processor={"image_seq_length": 4},
        names=GEMMA,
        mark="<start_of_image>",
    ),
    "gemma4": Tiny(
        {
            "text_config": text(
                "gemma4_text",
                **ALTERNATE,
                vocab_size_per_layer_input=ROOM,
                hidden_size_per_layer_input=16,
                global_head_dim=64,
            ),
            "vision_config": {
                "model_type": "gemma4_vision",
                "hidden_size": WIDTH,
                "intermediate_size": INNER,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "pooling_kernel_size": 2,
                "patch_size": 14,
                "position_embedding_size": 64,
            },
            "image_token_id": IDS["<image_soft_token>"],
            "video_token_id": IDS["<|video|>"],
            "audio_token_id": IDS["<audio_soft_token>"],
            "boi_token_id": IDS["<start_of_image>"],
            "eoi_token_id": IDS["<end_of_image>"],
        },
        images={"patch_size": 14, "max_soft_tokens": 70, "pooling_kernel_size": 2},
        processor={"image_seq_length": 70, "audio_seq_length": 4},
        names=GEMMA | {"audio_token": "<audio_soft_token>"},
        mark="<image_soft_token>",
    ),
    "paligemma": Tiny(
        {
            "text_config": text("gemma", num_image_tokens=4, vocab_size=2048),
            "vision_config": tower("siglip_vision_model", vision_use_head=False),
            "image_token_index": IDS["<image>"],
            "projection_dim": WIDTH,
        },
        "SiglipImageProcessor",
        {"size": square(28), "image_seq_length": 4},
    ),
    "mistral3": Tiny(
        {
            "text_config": text("mistral"),
            "vision_config": tower("pixtral", size=140, head_dim=32),
            "image_token_index": IDS["[IMG]"],
            "spatial_merge_size": 2,
            "vision_feature_layer": -1,
        },
        "PixtralImageProcessor",
        {"size": {"longest_edge": 112}, "patch_size": 14},
        {"patch_size": 14, "spatial_merge_size": 2},
        mark="[IMG]",
    ),
    "internvl": Tiny(
        {
            "text_config": text("qwen2"),
            "vision_config": tower("internvl_vision", size=[56, 56], patch=[14, 14]),
            "image_token_id": IDS["<IMG_CONTEXT>"],
            "image_seq_length": 4,
            "downsample_ratio": 0.5,
        },
        "GotOcr2ImageProcessor",
        TILES,
        {"image_seq_length": 4},
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
        },
        "<IMG_CONTEXT>",
    ),
    "idefics3": idefics("idefics3_vision"),
    "smolvlm": idefics("smolvlm_vision"),
    "aya_vision": Tiny(
        {
            "text_config": text("cohere2", **ALTERNATE) | {"tie_word_embeddings": True},
            "vision_config": tower("siglip_vision_model", size=56, vision_use_head=False),
            "image_token_index": IDS["<|IMG_PATCH|>"],
            "downsample_factor": 2,
        },
        "GotOcr2ImageProcessor",
        TILES,
        {"patch_size": 14, "img_size": 56, "downsample_factor": 2},
    ),
    "cohere2_vision": Tiny(
        {
            "text_config": text("cohere2", **ALTERNATE) | {"tie_word_embeddings": True},
            "vision_config": tower("siglip_vision_model", size=56, vision_use_head=False),
            "image_token_id": IDS["<|IMG_PATCH|>"],
            "downsample_factor": 2,
            "alignment_intermediate_size": INNER,
        },
        images={"size": square(56), "max_patches": 4, "patch_size": 2},
        names={
            "image_token": "<|IMG_PATCH|>",
            "boi_token": "<|START_OF_IMG|>",
            "eoi_token": "<|END_OF_IMG|>",
            "img_line_break_token": "<|IMG_LINE_BREAK|>",
        },
        mark="<|IMG_PATCH|>",
    ),
    "glm46v": Tiny(
        glm("glm4v_vision", "glm4v_text"),
        images={"size": {"shortest_edge": 784, "longest_edge": 12544}},
        names=GLM,
        mark=GLM_MARK,
    ),
    "glm_ocr": Tiny(
        glm("glm_ocr_vision", "glm_ocr_text"),
        "Glm46VImageProcessor",
        {"size": {"shortest_edge": 784, "longest_edge": 12544}},
        names=GLM,
        mark=GLM_MARK,
        classes={"video_processor": "Glm46VVideoProcessor", "processor": "Glm46VProcessor"},
    ),
    "paddleocr_vl": Tiny(
        {
            "text_config": text(
                "paddleocr_vl_text", rope_parameters=ROPE | {"mrope_section": [4, 6, 6]}
            ),
            "vision_config": tower("paddleocr_vl_vision", size=56, spatial_merge_size=2),
            **QWEN_IDS,
        },
        images={"size": {"shortest_edge": 784, "longest_edge": 12544}},
        names=QWEN,
        mark=QWEN_MARK,
    ),
    "deepseek_ocr2": Tiny(
        {
            "text_config": text(
                "deepseek_ocr2_text",
                n_routed_experts=4,
                num_experts_per_tok=2,
                moe_intermediate_size=32,
                mlp_layer_types=["dense", "sparse"],
            ),
            "vision_config": {
                "sam_config": {
                    "hidden_size": WIDTH,
                    "output_channels": 16,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "image_size": 1024,
                    "patch_size": 16,
                    "window_size": 14,
                    "global_attn_indexes": [],
                    "downsample_channels": [32, 64],
                },
                "encoder_config": {
                    name: value for name, value in text("").items() if name != "model_type"
                },
            },
            "image_token_id": IDS["<image>"],
        },
        images={"size": square(1024), "tile_size": 768, "min_patches": 2, "max_patches": 2},
        processor={"patch_size": 16, "downsample_ratio": 4},
    ),
    "lfm2_vl": Tiny(
        {
            "text_config": text(
                "lfm2",
                conv_bias=False,
                conv_L_cache=3,
                layer_types=["conv", "full_attention"],
                block_auto_adjust_ff_dim=False,
            ),
            "vision_config": tower("siglip2_vision_model", num_patches=16, vision_use_head=False),
            "image_token_id": IDS["<image>"],
            "projector_hidden_size": WIDTH,
            "downsample_factor": 2,
        },
        images={
            "tile_size": 56,
            "max_tiles": 4,
            "min_image_tokens": 1,
            "max_image_tokens": 16,
            "encoder_patch_size": 14,
            "max_num_patches": 64,
            "do_image_splitting": False,
            "size": square(56),
        },
    ),
    "qwen3_5_moe": Tiny(
        {
            "text_config": text(
                "qwen3_5_moe_text",
                rope_parameters=ROPE
                | {
                    "partial_rotary_factor": 0.5,
                    "mrope_section": [4, 2, 2],
                    "mrope_interleaved": True,
                },
                **LINEAR,
                num_experts=4,
                num_experts_per_tok=2,
                moe_intermediate_size=32,
                shared_expert_intermediate_size=32,
            ),
            "vision_config": grid_tower(16, num_position_embeddings=16),
            **QWEN_IDS,
        },
        "Qwen2VLImageProcessor",
        {"size": {"shortest_edge": 1024, "longest_edge": 16384}, "patch_size": 16},
        names=QWEN,
        mark=QWEN_MARK,
    ),
    "minicpmv4_6": Tiny(
        {
            "text_config": text("qwen3_5_text", **LINEAR),
            "vision_config": tower("minicpmv4_6_vision", size=56),
            "insert_layer_id": 0,
            "image_size": 56,
            "image_token_id": IDS["<|image_pad|>"],
            "video_token_id": IDS["<|video_pad|>"],
        },
        images={"patch_size": 14, "scale_resolution": 56, "max_slice_nums": 4},
        names={
            "image_start_token": "<image>",
            "image_end_token": "</img>",
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "slice_start_token": "<slice>",
            "slice_end_token": "</slice>",
            "image_id_start_token": "<image_id>",
            "image_id_end_token": "</image_id>",
        },
        mark="<|image_pad|>",
    ),
    "ovis2": Tiny(
        {
            "text_config": text("qwen2"),
            "vision_config": tower(
                "ovis2_vision_model", vocab_size=32, num_visual_indicator_tokens=5
            ),
            "image_token_id": IDS["<IMG_ATOM>"],
            "visual_indicator_token_ids": [
                IDS[f"<IMG_{name}>"] for name in ("START", "GRID", "COL", "ROW", "END")
            ],
            "vocab_size": ROOM,
            "hidden_size": WIDTH,
        },
        images={"size": square(28), "crop_to_patches": True, "max_patches": 4},
        processor={"image_seq_length": 4},
    ),
}
WITHOUT_TORCHVISION = ("gemma3", "llava", "idefics3")
"""Types whose processor has a class for PIL."""
