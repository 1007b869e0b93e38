"""Facts about Qwen2-VL (arXiv 2409.12191)."""

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
    name="qwen2_vl",
    implementation="vtool.families.qwen2_vl.model:Qwen2VL",
    class_prefix="Qwen2VL",
    processor="Qwen2VLProcessor",
    patches=PatchSizes(14),
    video=VideoDefaults(128 * 28 * 28, 768 * 28 * 28, capped_tokens=128_000),
    linear_layers=linear_layers(
        ("mlp.fc1", "mlp.fc2"), ("merger.mlp.0", "merger.mlp.2"), (*ATTENTION, *GATED_MLP)
    ),
    sliding_window=WindowDefaults(tokens=4096, layers=80, first=80),
    on_megatron=True,
    coordinates="thousand",
)
