"""Facts about Qwen3.5."""

from vtool.families.facts import (
    ATTENTION,
    GATED_MLP,
    TINY,
    FamilyFacts,
    PatchSizes,
    VideoDefaults,
    linear_layers,
)

_DELTA_NET = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")

FACTS = FamilyFacts(
    name="qwen3_5",
    implementation="vtool.families.qwen3_5.model:Qwen35",
    class_prefix="Qwen3_5",
    processor="Qwen3VLProcessor",
    video_processor="Qwen3VLVideoProcessor",
    patches=PatchSizes(16),
    video=VideoDefaults(
        128 * 32 * 32,
        768 * 32 * 32,
        bounds_are_total=True,
        mean_and_std=0.5,
        capped_tokens=768,
    ),
    linear_layers=linear_layers(
        ("mlp.linear_fc1", "mlp.linear_fc2"),
        ("merger.linear_fc1", "merger.linear_fc2"),
        (*(f"linear_attn.{name}" for name in _DELTA_NET), *ATTENTION, *GATED_MLP),
    ),
    sizes={"tiny": {**TINY, "vision_positions": 16, "linear_heads": 4}},
    separate_frames=True,
    recurrent=True,
    coordinates="thousand",
)
