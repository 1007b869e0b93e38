"""Facts about Qwen3-VL (arXiv 2511.21631)."""

from vtool.families.facts import (
    ATTENTION,
    GATED_MLP,
    TINY,
    FamilyFacts,
    PatchSizes,
    VideoDefaults,
    linear_layers,
)

FACTS = FamilyFacts(
    name="qwen3_vl",
    implementation="vtool.families.qwen3_vl.model:Qwen3VL",
    class_prefix="Qwen3VL",
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
        (
            "merger.linear_fc1",
            "merger.linear_fc2",
            "deepstack_merger_list.N.linear_fc1",
            "deepstack_merger_list.N.linear_fc2",
        ),
        (*ATTENTION, *GATED_MLP),
    ),
    # `vision_positions`: the tower learns a vector for each place of a square grid, which is
    # stretched over images of other sizes. What DeepStack adds after the last layer is seen by no
    # other token: one layer more than there are levels.
    sizes={"tiny": {**TINY, "vision_positions": 16, "layers": 3}},
    projector_modules=("merger", "deepstack_merger_list"),
    separate_frames=True,
    coordinates="thousand",
)
