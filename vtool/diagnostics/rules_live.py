"""Rules VT3xx: the values that settings have in the objects that use them."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="setting-not-arrived",
        code="VT301",
        summary="A live object has another value than the setting asks for.",
        why=(
            "On the way from a recipe to an object values are dropped, overwritten and defaulted"
            " without an error (verl#4214: betas; verl#5775: the distributed optimizer), and the"
            " run trains something else than its settings say."
        ),
        bad="optim.betas=[0.9,0.95], and an AdamW whose groups have betas of (0.9, 0.999)",
        good="an AdamW whose groups have betas of (0.9, 0.95)",
        fix=(
            "The recipe says what is wanted; what is wrong is what builds the object. In vtool that"
            " is a defect: report it with this line. In your own trainer, hand the setting on to"
            " the object that the line names."
        ),
    ),
    Rule(
        name="device-not-used",
        code="VT302",
        summary=(
            "The model is not on the device that the recipe asks for, or not offloaded as it asks."
        ),
        why="A run on the CPU of a machine with GPUs is a hundred times slower, and says nothing.",
        bad="device.kind=cuda, and parameters on the CPU",
        good="device.kind=cuda, and parameters on a GPU",
        fix=(
            "See which devices torch has: python -c 'import torch;"
            " print(torch.cuda.device_count())'. With --live, which runs on the CPU, this is not"
            " asked of a recipe for another device: vtool train asks before its first step."
        ),
    ),
    Rule(
        name="setting-not-shown",
        code="VT303",
        summary="A setting was to be compared that none of the given objects shows.",
        why=(
            "A check that looks at nothing would pass: a setting that nobody reads is ignored in"
            " the same way (NeMo-RL#3494)."
        ),
        bad="compare({'engine.bucket_cap_mb': 25}, {'optimizer': optimizer})",
        good="compare({'engine.bucket_cap_mb': 25}, {'model': ddp, 'optimizer': optimizer})",
        fix="Give the object that uses the setting, or leave the setting out of the comparison.",
    ),
    Rule(
        name="objects-not-built",
        code="VT304",
        summary="What the settings describe could not be built, at a tiny size and on the CPU.",
        why=(
            "It would not be built in the run either, after the queue, with all of its devices"
            " taken."
        ),
        bad="engine.transformer_config.masked_softmax_fusion=true where its kernel is missing",
        good="a model, an engine and an optimizer that are there",
        fix="Read what the library says, and change the setting that it names.",
    ),
)
