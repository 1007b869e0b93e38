"""Cross-field rules VT2xx:

what no single setting is wrong about. Each is a pure function of the settings.
"""

from collections.abc import Collection, Iterator

from vtool.config.origins import Origins
from vtool.config.rules import (
    data,
    device,
    ignored,
    lora,
    megatron,
    model,
    paths,
    profiler,
    training,
)
from vtool.config.rules.rule import CrossField
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic

RULES: tuple[CrossField, ...] = (
    CrossField("steps-or-epochs", ("train",), training.steps_or_epochs),
    CrossField("warmup-too-long", ("train", "optim"), training.warmup_too_long),
    CrossField("evaluation-without-data", ("evaluation", "data"), training.evaluation_without_data),
    CrossField(
        "micro-batch-larger-than-share",
        ("data", "launch", "engine"),
        data.micro_batch_larger_than_share,
    ),
    CrossField("max-length-missing", ("data",), data.max_length_missing),
    CrossField("packing-budget", ("data",), data.packing_budget),
    CrossField(
        "not-built-on-engine", ("data", "model", "engine", "device"), data.packing_not_built
    ),
    CrossField("ignored-setting", ("data",), data.rows_beside_tokens),
    CrossField("pixel-bounds", ("data", "model"), data.pixel_bounds),
    CrossField("image-longer-than-row", ("data", "model"), data.image_tokens),
    CrossField("half-an-image", ("data",), data.half_an_image),
    CrossField("token-types-left-out", ("data", "model"), data.token_types_left_out),
    CrossField("conflicting-model-source", ("model",), model.conflicting_model_source),
    CrossField("not-a-model-folder", ("model",), model.not_a_model_folder),
    CrossField("not-a-model-class", ("model",), model.not_a_model_class),
    CrossField("not-built-on-engine", ("engine", "model"), model.modeling_on_megatron),
    CrossField("patch-mismatch", ("model",), model.patch_mismatch),
    CrossField("nothing-to-train", ("model",), lora.nothing_to_train),
    CrossField("lora-target", ("model", "lora"), lora.targets),
    CrossField("megatron-ddp-conflict", ("engine", "model", "device"), megatron.ddp_conflict),
    CrossField(
        "not-in-megatron-core",
        ("engine",),
        megatron.not_in_megatron_core,
        megatron.no_megatron_core,
    ),
    CrossField("parallel-sizes", ("engine", "model", "launch"), megatron.parallel_sizes),
    CrossField("not-built-on-engine", ("engine", "model", "device", "lora"), megatron.not_built),
    CrossField("needs-transformer-engine", ("engine", "device"), megatron.needs_transformer_engine),
    CrossField("not-built-on-engine", ("engine", "lora"), lora.dropout_on_megatron),
    CrossField("numa-unbound", ("device", "launch"), device.numa_binding),
    CrossField("nothing-profiled", ("profiler",), profiler.nothing_profiled),
    CrossField("profile-interval", ("profiler", "train"), profiler.interval),
    CrossField("profiler-ranks", ("profiler", "launch"), profiler.ranks),
    CrossField("profiler-device", ("profiler", "device"), profiler.device),
    CrossField("npu-profiler-level", ("profiler",), profiler.npu_levels),
    CrossField("path-not-found", ("data",), paths.rows),
    CrossField("path-not-found", ("model",), paths.model),
    CrossField("path-not-found", ("model",), paths.modeling),
    CrossField("path-not-found", ("checkpoint",), paths.resume),
    CrossField("ignored-setting", ("model",), ignored.size_of_a_folder),
    CrossField("ignored-setting", ("data", "evaluation"), ignored.evaluation_of_nothing),
    CrossField("ignored-setting", ("engine", "device"), ignored.offload_to_itself),
    CrossField("ignored-setting", ("profiler",), profiler.unread),
    CrossField("ignored-setting", ("optim", "model"), lora.groups_of_frozen_components),
)


def check(run: Run, origins: Origins, groups: Collection[str]) -> Iterator[Diagnostic]:
    """Apply every rule whose groups are there."""
    for rule in RULES:
        if rule.can_run(groups):
            yield from rule.check(run, origins)


def unasked(run: Run, groups: Collection[str]) -> dict[str, str]:
    """The rules that cannot be asked on this machine, and why."""
    found = {rule.name: rule.misses(run) for rule in RULES if rule.can_run(groups)}
    return {name: reason for name, reason in found.items() if reason}


__all__ = ["RULES", "CrossField", "check", "unasked"]
