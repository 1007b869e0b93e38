"""Every setting of a recipe, and how it is known to arrive: read back from a live object, shown to
act by a test, or neither, and why.

A setting that is in none of the three is a failure of our own tests, and so is one that is in a
table and not in the schema, one that no object shows though it is in `READ`, and a test that is not
there.
"""

from vtool.config.schema import Video
from vtool.config.schema.megatron import DdpConfig, Parallel, TransformerConfig, WrapConfig

_MODEL, _DDP, _FSDP2 = (
    "vtool.models.observe_model",
    "vtool.engines.ddp:observe_ddp",
    "vtool.engines.fsdp2:observe_fsdp2",
)
_MEGATRON, _RUN = (
    "vtool.engines.megatron.observe_megatron",
    "vtool.training.observe_run:observe_run",
)
_GROUPS, _SCHEDULE = (
    "vtool.training.optimizer:observe_groups",
    "vtool.training.schedule:observe_schedule",
)

READ: dict[str, str] = {
    **dict.fromkeys(
        (
            "run.dir",
            "run.seed",
            "launch.nproc",
            "device.kind",
            "device.threads",
            "train.steps",
            "train.epochs",
        ),
        _RUN,
    ),
    **dict.fromkeys(("model.family", "model.size"), f"{_MODEL}:observe_config"),
    "model.modeling": f"{_MODEL}:observe_class",
    **dict.fromkeys(
        ("model.attention", "model.gradient_checkpointing"), f"{_MODEL}:observe_layers"
    ),
    "model.dtype": "vtool.engines.contract:Engine.observe",
    **{f"model.freeze.{component}": _RUN for component in ("vision", "projector", "language")},
    **{
        f"data.{split}.{name}": _RUN
        for split in ("train", "validation", "test")
        for name in ("format", "split", "path")
    },
    **{
        f"data.{name}": _RUN
        for name in (
            "global_batch_size",
            "micro_batch_size",
            "packing",
            "image.min_pixels",
            "image.max_pixels",
        )
    },
    **{f"data.video.{name}": _RUN for name in Video.model_fields},
    **{
        f"lora.{name}": f"{_MODEL}:observe_adapters"
        for name in ("rank", "alpha", "dropout", "targets", "exclude")
    },
    **{f"optim.{name}": _GROUPS for name in ("name", "betas", "eps", "weight_decay")},
    **{f"optim.{name}": _SCHEDULE for name in ("lr", "schedule", "warmup_steps")},
    **{
        f"optim.groups.{component}.{name}": _GROUPS
        for component in ("vision", "projector", "language")
        for name in ("lr", "weight_decay")
    },
    "engine.kind": "vtool.engines.contract:Engine.observe",
    **dict.fromkeys(("engine.bucket_cap_mb", "engine.gradient_as_bucket_view"), _DDP),
    **dict.fromkeys(("engine.reshard_after_forward", "engine.cpu_offload"), _FSDP2),
    **{f"engine.parallel.{name}": f"{_MEGATRON}:observe_groups" for name in Parallel.model_fields},
    "engine.bridge": f"{_MEGATRON}:observe_bridge",
    **{
        f"engine.wrap_config.{name}": f"{_MEGATRON}:observe_megatron_ddp"
        for name in WrapConfig.model_fields
    },
    **{
        f"engine.ddp_config.{name}": f"{_MEGATRON}:observe_megatron_ddp"
        for name in DdpConfig.model_fields
    },
    **{
        f"engine.transformer_config.{name}": f"{_MEGATRON}:observe_language"
        for name in TransformerConfig.model_fields
    },
}
"""By setting, the function that tells it."""

_DATA, _FOLDER, _HERE = (
    "tests/data/test_encode.py::",
    "tests/training/test_run_folder.py::",
    "tests/training/test_observe_run.py::",
)
_CHECKPOINT = "tests/training/test_checkpoint.py::"
_PROFILE, _ASKED, _NPU = (
    f"tests/profiling/test_{name}.py::" for name in ("profiler", "settings", "devices")
)
_TRACKED = "tests/training/test_tracking.py::"
_EVALUATED = f"{_HERE}test_a_run_is_evaluated_when_and_as_it_is_asked"
ACTS_LATER: dict[str, str] = {
    "run.name": f"{_FOLDER}test_settings_that_change_no_number_may_differ",
    "model.path": (
        "tests/training/test_agreement.py::test_ranks_of_other_folders_are_named_by_every_rank"
    ),
    "model.init": "tests/cli/test_train.py::test_a_model_folder_is_fine_tuned",
    "model.dummy_visual": (
        "tests/training/test_dummy_visual.py::test_never_stops_a_step_in_which_one_rank_would_wait_for_another"
    ),
    "data.max_length": f"{_DATA}test_truncation_keeps_a_part_of_the_answer_and_says_so",
    "data.on_overlong": (
        "tests/data/test_audit.py::test_overlong_rows_are_dropped_only_where_the_recipe_says_so"
    ),
    "data.max_dropped_rows": (
        "tests/data/test_audit.py::test_bad_rows_are_dropped_up_to_the_number_allowed"
    ),
    "data.workers": (
        "tests/training/test_resume.py::test_data_workers_do_not_hold_the_folder_of_a_killed_run"
    ),
    "data.drop_model_inputs": f"{_DATA}test_an_input_is_left_out_only_where_the_recipe_names_it",
    "data.micro_batch_tokens": (
        "tests/data/test_packing.py::test_every_row_is_in_one_micro_batch_and_none_is_over_the_budget"
    ),
    "optim.clip_norm": f"{_HERE}test_gradients_are_clipped_to_the_norm_that_is_asked",
    "checkpoint.every_steps": (
        f"{_FOLDER}test_a_run_goes_back_to_an_earlier_step_of_its_own_and_throws_nothing_away"
    ),
    "checkpoint.asynchronous": (
        f"{_CHECKPOINT}test_what_is_written_while_the_loop_goes_on_is_what_was_there_at_its_step"
    ),
    "device.numa": "tests/training/test_launch.py::test_torchrun_is_told_what_to_bind_processes_by",
    "checkpoint.keep_last": f"{_CHECKPOINT}test_only_the_newest_are_kept",
    "checkpoint.resume": f"{_FOLDER}test_a_run_can_begin_from_another_runs_checkpoint",
    **dict.fromkeys(
        ("profiler.tool", "profiler.profile_interval"),
        f"{_PROFILE}test_the_trace_keeps_the_formats_rules_and_names_the_runs_steps",
    ),
    "profiler.warmup": f"{_ASKED}test_the_tool_runs_in_its_warm_up_and_keeps_the_interval",
    "profiler.ranks": f"{_ASKED}test_only_the_ranks_that_are_asked_for_record",
    **{
        f"profiler.record.{name}": f"{_ASKED}test_torchs_profiler_has_what_is_asked"
        for name in ("shapes", "stacks", "flops", "memory")
    },
    **{
        f"profiler.npu.{name}": (
            f"{_NPU}test_torch_npu_is_asked_for_what_the_settings_say_in_its_own_words"
        )
        for name in ("level", "aic_metrics", "export_type", "analysis")
    },
    "profiler.memory.max_entries": (
        f"{_NPU}test_the_allocators_history_is_kept_and_its_curve_ends_at_what_is_allocated"
    ),
    "profiler.max_trace_mb": f"{_PROFILE}test_a_trace_above_its_limit_is_capped_and_said",
    "tracking.kind": f"{_TRACKED}test_tensorboard_reads_the_numbers_of_metrics_jsonl",
    "tracking.project": f"{_TRACKED}test_wandb_keeps_the_run_in_its_folder_without_a_network",
    **dict.fromkeys(
        ("evaluation.every_steps", "evaluation.batch_size", "evaluation.generate.max_new_tokens"),
        _EVALUATED,
    ),
}
"""What has no object yet before the first step: by setting, the test that shows it acting."""

NOT_READABLE: dict[str, str] = {
    "kind": "it says which schema a recipe has, and is in no object",
}
"""By setting, why."""
