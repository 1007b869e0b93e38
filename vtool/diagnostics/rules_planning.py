"""Rules of `vtool plan`."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="does-not-fit",
        code="VT521",
        summary="A rank of the recipe needs more memory than a GPU has.",
        why=(
            "A run ends in its first steps, or, where long rows come late, after days, once its"
            " machines have been waited for."
        ),
        bad="vtool plan qwen2_5_vl_7b_fsdp2 --gpus 1 --memory 80",
        good="vtool plan qwen2_5_vl_7b_fsdp2 --gpus 8 --memory 80",
        fix="Change what the plan names: it is the smallest change that it knows of.",
    ),
    Rule(
        name="not-planned",
        code="VT522",
        summary="No plan is made of this recipe: a figure would be a guess.",
        why="A false figure is believed, and machines are rented by it.",
        bad="vtool plan digits_megatron",
        good="vtool plan digits engine=fsdp2 --gpus 2 --tokens 512",
        fix="Change what the message names.",
    ),
)
