"""Facts about Qwen2.5-VL (arXiv 2502.13923)."""

from vtool.families.facts import (
    ATTENTION,
    GATED_MLP,
    FamilyFacts,
    PatchSizes,
    VideoDefaults,
    WindowDefaults,
    linear_layers,
)

FACTS = FamilyFacts(
    name="qwen2_5_vl",
    implementation="vtool.families.qwen2_5_vl.model:Qwen25VL",
    class_prefix="Qwen2_5_VL",
    processor="Qwen2_5_VLProcessor",
    patches=PatchSizes(14),
    video=VideoDefaults(128 * 28 * 28, 768 * 28 * 28, capped_tokens=128_000),
    linear_layers=linear_layers(
        GATED_MLP, ("merger.mlp.0", "merger.mlp.2"), (*ATTENTION, *GATED_MLP)
    ),
    sliding_window=WindowDefaults(tokens=4096, layers=80, first=80),
    seconds_per_grid=True,
    text_positions_without_token_types=True,
    on_megatron=True,
    coordinates="resized",
)
