"""Rules VT23x: settings of another trainer's recipe."""

from vtool.diagnostics import Rule

RULES = (
    Rule(
        name="setting-without-reader",
        code="VT230",
        summary=(
            "A setting of another trainer's recipe is read by no line of that trainer, or has been"
            " taken away."
        ),
        why=(
            "Whoever reads the recipe believes that it is in force: verl's trainer.seed, or its"
            " freeze_vision_tower."
        ),
        bad="trainer: {seed: 1}",
        good="trainer: {test_freq: 100}",
        fix="Leave it out there; the finding says what takes its place.",
        severity="warning",
    ),
    Rule(
        name="setting-dropped",
        code="VT231",
        summary=(
            "A setting of another trainer's recipe is lost on its way to the object that would act"
            " on it."
        ),
        why=(
            "Before verl#5775 a plain optimizer met a DDP that shares gradients out; ranks drift"
            " apart by 9 % in five steps, and the first loss is the same."
        ),
        bad="engine: {use_distributed_optimizer: false}",
        good=(
            "engine: {use_distributed_optimizer: false, override_ddp_config:"
            " {use_distributed_optimizer: false}}"
        ),
        fix="Write it where it arrives, too.",
        severity="warning",
    ),
    Rule(
        name="no-counterpart",
        code="VT232",
        summary="A setting of another trainer's recipe has no counterpart here.",
        why="Nothing can be said of it: neither that it is right, nor that it is wrong.",
        bad="model: {use_fused_kernels: true}",
        good="trainer: {save_freq: 100}",
        fix="Look it up in that trainer's documentation.",
        severity="note",
    ),
    Rule(
        name="not-on-this-machine",
        code="VT238",
        summary="Another trainer's recipe names a model, rows or a file that is not here.",
        why="What depends on them is not checked: neither right nor wrong. Nothing is downloaded.",
        bad="{model_name_or_path: Qwen/Qwen2.5-VL-3B-Instruct}, which was never downloaded",
        good="hf download Qwen/Qwen2.5-VL-3B-Instruct, and then the same",
        fix="Download it, or name a folder that is here.",
        severity="note",
    ),
    Rule(
        name="silent-trap",
        code="VT236",
        summary=(
            "Settings of another trainer's recipe do something there that their names do not say."
        ),
        why=(
            "The run ends with a low loss and no error: rows that see each other, tokens that count"
            " unequally, placeholders of images that are learnt."
        ),
        bad="{do_train: true, packing: true}",
        good="{do_train: true, neat_packing: true}",
        fix="Do what the finding says there, or train here.",
        severity="warning",
    ),
    Rule(
        name="refused-there",
        code="VT237",
        summary="Another trainer refuses a setting of its recipe together with the others.",
        why="The job waits for its machine, loads the model, and ends in its first minute.",
        bad="{dataset: rows.jsonl, packing: true, attn_impl: sdpa}",
        good="{dataset: rows.jsonl, packing: true, attn_impl: flash_attn}",
        fix="Do what the finding says.",
    ),
)
