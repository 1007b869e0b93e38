"""Facts about GLM-4.1V (arXiv 2507.01006)."""

from vtool.families.facts import (
    ATTENTION,
    GATED_MLP,
    TINY,
    FamilyFacts,
    PatchSizes,
    VideoDefaults,
    linear_layers,
)
from vtool.families.tokens import TokenNames

FACTS = FamilyFacts(
    name="glm4v",
    implementation="vtool.families.glm4v.model:Glm4v",
    class_prefix="Glm4v",
    processor="Glm4vProcessor",
    image_processor="Glm4vImageProcessor",
    video_processor="Glm4vVideoProcessor",
    patches=PatchSizes(14),
    video=VideoDefaults(
        112 * 112,
        30_000 * 2 * 28 * 28,
        bounds_are_total=True,
        max_frames=None,
        max_seconds=300.0,
        min_frames=1,
    ),
    linear_layers=linear_layers(
        GATED_MLP,
        ("merger.proj", "merger.gate_proj", "merger.up_proj", "merger.down_proj"),
        (*ATTENTION, "mlp.gate_up_proj", "mlp.down_proj"),
    ),
    sizes={"tiny": {**TINY, "vision_positions": 16}},
    token_names=TokenNames(
        image="<|image|>",
        video="<|video|>",
        vision_start="<|begin_of_image|>",
        vision_end="<|end_of_image|>",
        video_start="<|begin_of_video|>",
        video_end="<|end_of_video|>",
    ),
    token_fields={
        "image": "image_token_id",
        "video": "video_token_id",
        "vision_start": "image_start_token_id",
        "vision_end": "image_end_token_id",
        "video_start": "video_start_token_id",
        "video_end": "video_end_token_id",
    },
    # a convolution stands before the merger
    projector_modules=("merger", "downsample"),
    # an image is counted as both frames of a patch (image_processing_pil_glm4v.py, `smart_resize`)
    frames_per_image=2,
    separate_frames=True,
    videos_are_images=True,  # modeling_glm4v.py, `get_placeholder_mask`
    coordinates="thousand",
)
