"""The meaning here of the settings of verl's SFT trainer.

Read from `verl/trainer/config/sft_trainer_engine.yaml`, its groups `engine`, `optim`, `model` and
`profiler`, and the code that reads them (`trainer/sft_trainer.py`, `workers/engine/`), of January
to August 2026.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtool.config.foreign.word import NO_COUNTERPART


@dataclass(frozen=True, slots=True)
class SameSetting:
    """A setting of verl's, the one here that means the same, and how its value is converted."""

    theirs: str
    ours: str
    convert: Callable[[Any], Any] = lambda value: value
    """To our value; None where theirs is not set, `NO_COUNTERPART` where we have none for it."""
    default: Any = None
    """Verl's, where it is not ours and matters."""


def _one_of(**values: Any) -> Callable[[Any], Any]:
    return lambda value: values.get(str(value).lower(), NO_COUNTERPART)


def _positive(value: Any) -> Any:
    """Convert a number of steps: 0 and below is off, and `after_each_epoch` has no counterpart."""
    if not isinstance(value, int | float):
        return NO_COUNTERPART
    return value if value > 0 else None


def _rows(value: Any) -> Any:
    """Convert one file of rows, or a list of them, into entries of `data.train`.

    `~` is the user's folder, which pandas looks in; what is not on this machine (`hdfs://`) is not
    judged.
    """
    files = (
        [str(file) for file in value] if isinstance(value, list) else [str(value)] if value else []
    )
    if any("://" in file for file in files):
        return NO_COUNTERPART
    return [{"format": "messages", "path": str(Path(file).expanduser())} for file in files] or None


def _targets(value: Any) -> Any:
    return None if value in (None, "all-linear") else value if isinstance(value, list) else [value]


RUN = (
    SameSetting("model.path", "model.path"),
    SameSetting(
        "model.enable_gradient_checkpointing", "model.gradient_checkpointing", default=True
    ),
    SameSetting("data.train_files", "data.train", _rows),
    SameSetting("data.val_files", "data.validation", _rows),
    SameSetting("data.train_batch_size", "data.global_batch_size", default=256),
    SameSetting("data.max_length", "data.max_length", default=1024),
    SameSetting("data.num_workers", "data.workers"),
    SameSetting("trainer.experiment_name", "run.name", default="test"),
    SameSetting("trainer.default_local_dir", "run.dir"),
    SameSetting("trainer.save_freq", "checkpoint.every_steps", _positive),
    SameSetting("trainer.test_freq", "evaluation.every_steps", _positive),
    SameSetting("trainer.max_ckpt_to_keep", "checkpoint.keep_last"),
    SameSetting(
        "trainer.device", "device.kind", _one_of(cuda="cuda", npu="npu", cpu="cpu"), default="cuda"
    ),
    SameSetting("optim.lr", "optim.lr", default=1e-3),
    SameSetting("optim.betas", "optim.betas"),
    SameSetting("optim.weight_decay", "optim.weight_decay", default=0.01),
    SameSetting("optim.clip_grad", "optim.clip_norm"),
    SameSetting("optim.lr_warmup_steps", "optim.warmup_steps", _positive),
    SameSetting(
        "engine.dtype",
        "model.dtype",
        _one_of(bfloat16="bfloat16", float32="float32"),
        default="bfloat16",
    ),
)
LORA = (
    SameSetting("model.lora_rank", "lora.rank"),
    SameSetting("model.lora_alpha", "lora.alpha", default=16),
    SameSetting("model.target_modules", "lora.targets", _targets),
    SameSetting("model.exclude_modules", "lora.exclude", _targets),
)
FSDP = (
    SameSetting("engine.reshard_after_forward", "engine.reshard_after_forward"),
    SameSetting("engine.offload_policy", "engine.cpu_offload"),
    SameSetting("optim.optimizer", "optim.name", _one_of(adamw="adamw", adamw8bit="adamw")),
    SameSetting("optim.min_lr_ratio", "optim.min_lr_ratio"),
    SameSetting(
        "optim.lr_scheduler_type",
        "optim.schedule",
        _one_of(constant="constant", cosine="cosine"),
        default="constant",
    ),
)
MEGATRON_LORA = (
    SameSetting("model.lora.rank", "lora.rank"),
    SameSetting("model.lora.alpha", "lora.alpha", default=32),
    SameSetting("model.lora.dropout", "lora.dropout"),
)
MEGATRON = (
    SameSetting("engine.tensor_model_parallel_size", "engine.parallel.tensor"),
    SameSetting("engine.pipeline_model_parallel_size", "engine.parallel.pipeline"),
    SameSetting("engine.context_parallel_size", "engine.parallel.context"),
    SameSetting("engine.sequence_parallel", "engine.parallel.sequence", default=True),
    SameSetting(
        "engine.use_distributed_optimizer",
        "engine.wrap_config.use_distributed_optimizer",
        default=True,
    ),
    SameSetting("optim.optimizer", "optim.name", _one_of(adam="adamw")),
    SameSetting(
        "optim.lr_decay_style",
        "optim.schedule",
        _one_of(constant="constant", cosine="cosine", linear="linear"),
        default="constant",
    ),
)
# Read by no line of verl's SFT trainer, or taken away; and what stands in its place here.
UNREAD: Mapping[str, str] = {
    "trainer.seed": (
        "verl's SFT trainer never reads it: the order of the rows does not depend on it. Here:"
        " run.seed"
    ),
    "data.balance_dp_token": (
        "verl's SFT trainer never reads it. Here a step divides by its tokens over all ranks, and"
        " is exact without it"
    ),
    "data.use_shm": "verl's trainer on engines never reads it",
    "model.use_shm": "verl's trainer on engines never reads it",
    "model.freeze_vision_tower": (
        "verl's SFT trainer never reads it: the tower would be trained. Here: model.freeze.vision"
    ),
    "actor.freeze_vision_tower": (
        "verl's SFT trainer never reads it: the tower would be trained. Here: model.freeze.vision"
    ),
    "trainer.nnodes": (
        "verl's SFT trainer never reads it: torchrun says how many machines there are"
    ),
    "trainer.n_gpus_per_node": (
        "verl's SFT trainer never reads it: torchrun says how many processes there are. Here:"
        " launch.nproc"
    ),
    "trainer.use_legacy_worker_impl": "verl has removed it, with the workers that it chose",
    "global_profiler": "verl's SFT trainer does not read it; its own group is `profiler`",
}
# Known to verl, and without a counterpart: whole groups, then single settings.
_GROUPS = (
    *(
        "profiler",
        "checkpoint",
        "hydra",
        "data.custom_cls",
        "data.apply_chat_template_kwargs",
        "optim.override_optimizer_config",
    ),
    *("model.fused_kernel_options", "model.tiled_mlp", "model.mtp", "model.override_config"),
    *("engine.wrap_policy", "engine.override_mcore_model_config", "engine.mixed_precision"),
    *("engine.qat", "engine.turbo_config", "engine.router_replay"),
)
_SINGLE = {
    "data": (
        "micro_batch_size_per_gpu max_token_len_per_gpu use_dynamic_bsz train_max_samples"
        " val_max_samples messages_key tools_key enable_thinking_key pad_mode truncation"
        " ignore_input_ids_mismatch image_key video_key enable_thinking_default"
    ),
    "trainer": (
        "default_hdfs_dir project_name total_epochs total_training_steps logger resume_mode"
        " resume_from_path profile_interval balance_batch"
    ),
    "model": (
        "hf_config_path tokenizer_path trust_remote_code custom_chat_template external_lib"
        " enable_activation_offload use_remove_padding lora_adapter_path use_liger"
        " use_fused_kernels local_path lora.type lora.merge lora.target_modules"
        " lora.exclude_modules lora.dropout_position lora.lora_A_init_method"
        " lora.lora_B_init_method"
        " lora.a2a_experimental lora.dtype lora.adapter_path lora.freeze_vision_model"
        " lora.freeze_vision_projection lora.freeze_language_model"
    ),
    "engine": (
        "strategy param_offload grad_offload optimizer_offload expert_model_parallel_size"
        " expert_tensor_parallel_size virtual_pipeline_model_parallel_size use_dist_checkpointing"
        " dist_checkpointing_path dist_checkpointing_prefix seed use_mbridge vanilla_mbridge"
        " use_remove_padding forward_only fsdp_size forward_prefetch model_dtype use_orig_params"
        " full_determinism ulysses_sequence_parallel_size entropy_from_logits_with_chunking"
        " use_torch_compile entropy_checkpointing use_dynamic_bsz max_token_len_per_gpu"
        " micro_batch_size_per_gpu infer_max_token_len_per_gpu infer_micro_batch_size_per_gpu"
        " use_fused_kernels entropy_from_logits_chunk_size use_no_sync_for_gradient_accumulation"
        " pad_to_length pad_to_length_bucket dynamic_context_parallel max_seqlen_per_dp_cp_rank"
        " dist_ckpt_optim_fully_reshardable distrib_optim_fully_reshardable_mem_efficient"
        " pad_bshd_to_minibatch_max use_megatron_fsdp"
    ),
    "optim": (
        "optimizer_impl lr_warmup_steps_ratio total_training_steps num_cycles"
        " warmup_style lr_warmup_init lr_decay_steps min_lr weight_decay_incr_style"
        " lr_wsd_decay_style lr_wsd_decay_steps use_checkpoint_opt_param_scheduler"
        " zero_indexed_step use_precision_aware_optimizer main_grads_dtype exp_avg_dtype"
        " exp_avg_sq_dtype use_layer_wise_distributed_optimizer muon_momentum muon_nesterov"
        " muon_split_qkv muon_scale_mode muon_coefficient_type muon_num_ns_steps muon_tp_mode"
        " muon_fp32_matmul_prec muon_extra_scale_factor muon_scalar_optimizer"
        " muon_match_adamw_update_rms"
    ),
}
VERL_NAMES = frozenset(
    {same.theirs for table in (RUN, LORA, FSDP, MEGATRON_LORA, MEGATRON) for same in table}
    | set(UNREAD)
    | {f"{group}.{name}" for group, names in _SINGLE.items() for name in names.split()}
)
"""Every setting that verl's SFT trainer has, or had."""


def in_a_group(name: str) -> bool:
    """Return whether a setting is in a group without a counterpart, or names a group's class."""
    return name.endswith("_target_") or any(
        name == group or name.startswith(f"{group}.") for group in _GROUPS
    )
