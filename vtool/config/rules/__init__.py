"""Rules VT2xx: settings that contradict each other, each a pure function of the settings."""

from collections.abc import Mapping
from dataclasses import dataclass

from vtool.config.origins import Origins
from vtool.config.rules import (
    best,
    data,
    device,
    engine,
    ignored,
    images,
    lora,
    megatron,
    mixtures,
    model,
    paths,
    profiler,
    training,
)
from vtool.config.rules.rule import SettingsRule
from vtool.config.schema import Run
from vtool.config.schema.base import NotValid
from vtool.diagnostics import Diagnostic, Rule

SETTINGS_RULES: tuple[SettingsRule, ...] = (
    training.steps_or_epochs,
    training.warmup_too_long,
    training.two_warmups,
    training.rate_of_random_weights,
    training.evaluation_without_data,
    best.best_without_validation,
    best.metric_not_computed,
    data.micro_batch_larger_than_share,
    data.max_length_missing,
    data.packing_budget,
    data.evaluated_on_trained_rows,
    mixtures.split_conflict,
    mixtures.source_listed_twice,
    mixtures.mixture_conflict,
    engine.packing_not_built,
    engine.attention_not_built,
    ignored.micro_batch_size_with_packing,
    images.pixel_bounds,
    images.image_longer_than_row,
    images.half_an_image,
    images.token_types_left_out,
    images.sixteen_bit_range,
    model.conflicting_model_source,
    model.not_a_model_folder,
    model.not_a_model_class,
    engine.modeling_on_megatron,
    model.patch_mismatch,
    model.two_saves_in_folder,
    model.recompute_beyond_blocks,
    model.router_loss_left_out,
    lora.nothing_to_train,
    lora.lora_target,
    megatron.ddp_conflict,
    megatron.not_in_megatron_core,
    megatron.parallel_sizes,
    megatron.not_built,
    megatron.needs_transformer_engine,
    engine.dropout_on_megatron,
    engine.adapters_of_peft_on_megatron,
    engine.narrow_base_not_built,
    engine.narrow_states_not_built,
    engine.recompute_not_planned,
    device.numa_unbound,
    profiler.nothing_profiled,
    profiler.profile_interval,
    profiler.profiler_ranks,
    profiler.profiler_device,
    profiler.npu_profiler_level,
    paths.rows_file,
    paths.model_folder,
    paths.modeling_file,
    paths.run_folder,
    paths.resume_folder,
    paths.folder_of_weights,
    paths.two_starts,
    ignored.size_of_a_folder,
    ignored.unused_sixteen_bit_range,
    ignored.evaluation_of_nothing,
    ignored.groups_of_no_split,
    ignored.weight_of_one_source,
    ignored.offload_to_itself,
    ignored.other_profilers_settings,
    ignored.groups_of_frozen_components,
    ignored.min_lr_ratio_of_constant_schedule,
)
"""Every check, in the order in which its findings are reported."""

RULES: tuple[Rule, ...] = tuple(dict.fromkeys(each.rule for each in SETTINGS_RULES))
"""Their texts; several checks may share a rule."""


@dataclass(frozen=True, slots=True)
class RulesOutcome:
    """Findings of the rules, and what kept some from running."""

    findings: tuple[Diagnostic, ...]
    missed: frozenset[str]
    """Rules that did not run on everything: a setting that they read has no valid value."""
    reasons: Mapping[str, str]
    """By rule, why this machine cannot answer it."""


def run_rules(run: Run, origins: Origins) -> RulesOutcome:
    """Run every rule; one that reads a setting without a valid value stops there."""
    findings: list[Diagnostic] = []
    missed: set[str] = set()
    reasons: dict[str, str] = {}
    for each in SETTINGS_RULES:
        try:
            findings.extend(each.check(run, origins))
            if reason := each.unanswerable(run):
                reasons[each.rule.name] = reason
        except NotValid:
            missed.add(each.rule.name)
    return RulesOutcome(tuple(findings), frozenset(missed), reasons)
