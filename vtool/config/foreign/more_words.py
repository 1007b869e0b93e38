"""Words of verl, of axolotl and of peft, which TRL, LLaMA-Factory and ms-swift do not have.

Those of verl are the last parts of its names. `--from verl` converts them by `verl_settings.py`,
and `--from axolotl` by `axolotl.py`: here they are for messages and for `vtool explain`.
"""

from collections.abc import Mapping

from vtool.config.foreign.word import Word

_SOURCES = "a list: data.train=[{format: messages, path: rows.jsonl}]"
_LIKE_TRAIN = "a list, as data.train is"
_BUDGET = "data.packing=token_budget with data.micro_batch_tokens"
_STEP = "data.global_batch_size counts the rows of a step, over all processes and micro-batches"
_SCHEDULE = "cosine, linear, wsd or constant, each with a warm-up"
_NAMES = "ends of names; null is all linear layers"
_GROUP = "a group: lora={rank: 16} trains adapters, lora=null the weights"
_KERNELS = "with sdpa, varlen or flash_attention_2 packed rows do not see one another"
_RECOMPUTE = "each block is computed again in the backward pass"
_TRACKER = "a tracker's entry says it: tracking=[{kind: wandb, project: …}]"
_ANSWERS = "answers alone are learnt; weight: 0 in a row leaves one out"
_EVERY = "a number of steps"

PEFT_WORDS: Mapping[str, Word] = {
    "r": Word("lora.rank"),
    "exclude_modules": Word("lora.exclude", "ends of names"),
}
VERL_WORDS: Mapping[str, Word] = {
    "train_files": Word("data.train", _SOURCES),
    "val_files": Word("data.validation", _LIKE_TRAIN),
    "train_batch_size": Word("data.global_batch_size", _STEP),
    "micro_batch_size_per_gpu": Word("data.micro_batch_size", "the rows of one forward pass"),
    "use_dynamic_bsz": Word("data.packing", _BUDGET),
    "max_token_len_per_gpu": Word("data.micro_batch_tokens", _BUDGET),
    "train_max_samples": Word("data.train", "limit of a source: {…, limit: 1000}"),
    "val_max_samples": Word("data.validation", "limit of a source: {…, limit: 1000}"),
    "truncation": Word("data.on_overlong", "error, drop or truncate"),
    "num_workers": Word("data.workers"),
    "partial_pretrain": Word("model.path", "a folder, or the name of a model on the hub"),
    "enable_gradient_checkpointing": Word("model.gradient_checkpointing", _RECOMPUTE),
    "lora_adapter_path": Word("train.from", "train.from=RUN begins with the adapter of RUN"),
    "clip_grad": Word("optim.clip_norm", "null is off"),
    "lr_warmup_steps": Word("optim.warmup_steps"),
    "lr_warmup_steps_ratio": Word("optim.warmup_ratio"),
    "warmup_steps_ratio": Word("optim.warmup_ratio"),
    "warmup_style": Word("optim.schedule", _SCHEDULE),
    "lr_decay_style": Word("optim.schedule", _SCHEDULE),
    "min_lr": Word("optim.min_lr_ratio", "the floor, as a part of optim.lr"),
    "offload_policy": Word("engine.cpu_offload", "of engine=fsdp2"),
    "tensor_model_parallel_size": Word("engine.parallel.tensor", "of engine=megatron"),
    "pipeline_model_parallel_size": Word("engine.parallel.pipeline", "of engine=megatron"),
    "context_parallel_size": Word("engine.parallel.context", "of engine=megatron"),
    "sequence_parallel": Word("engine.parallel.sequence", "of engine=megatron"),
    "override_ddp_config": Word("engine.ddp_config", "of engine=megatron"),
    "override_transformer_config": Word("engine.transformer_config", "of engine=megatron"),
    "total_epochs": Word("train.epochs"),
    "total_training_steps": Word("train.steps"),
    "save_freq": Word("checkpoint.every_steps", _EVERY),
    "test_freq": Word("evaluation.every_steps", _EVERY),
    "max_ckpt_to_keep": Word("checkpoint.keep_last"),
    "resume_mode": Word("checkpoint.resume", "auto, never, or a run's folder"),
    "resume_from_path": Word("checkpoint.resume", "auto resumes in the run's own folder"),
    "default_local_dir": Word("run.dir"),
    "experiment_name": Word("run.name"),
    "project_name": Word("tracking", _TRACKER),
    "logger": Word("tracking", "a list of trackers: tracking=[{kind: NAME}]"),
    "n_gpus_per_node": Word("launch.nproc", "processes on this machine"),
}
AXOLOTL_WORDS: Mapping[str, Word] = {
    "base_model": Word("model.path", "a folder, or the name of a model on the hub"),
    "base_model_config": Word("model.path", "its folder has the config too"),
    "revision_of_model": Word("model.revision"),
    "processor_type": Word(None, "found from model.path"),
    "tokenizer_type": Word(None, "found from model.path"),
    "sequence_len": Word(
        "data.max_length", "longer rows are errors unless data.on_overlong says otherwise"
    ),
    "excess_length_strategy": Word("data.on_overlong", "error, drop or truncate"),
    "sample_packing": Word("data.packing", _BUDGET),
    "pad_to_sequence_len": Word(None, "rows are padded to the longest of their micro-batch"),
    "eval_batch_size": Word("evaluation.batch_size"),
    "num_epochs": Word("train.epochs"),
    "lr_scheduler": Word("optim.schedule", _SCHEDULE),
    "cosine_min_lr_ratio": Word("optim.min_lr_ratio", "the floor, as a part of optim.lr"),
    "test_datasets": Word("data.validation", _LIKE_TRAIN),
    "val_set_size": Word("data.split.validation", "the share of rows held back"),
    "dataset_prepared_path": Word("data.audit_cache", "rows are encoded as they are needed"),
    "dataset_processes": Word("data.workers", "rows are encoded while the model trains"),
    "train_on_inputs": Word(None, _ANSWERS),
    "chat_template": Word(
        None, "the chat template is the model's own; data.chat_template names another"
    ),
    "adapter": Word("lora", _GROUP),
    "lora_model_dir": Word("train.from", "train.from=RUN begins with the adapter of RUN"),
    "lora_target_linear": Word("lora.targets", _NAMES),
    "peft_use_dora": Word("lora.dora"),
    "peft_use_rslora": Word("lora.rslora"),
    "unfrozen_parameters": Word("model.freeze", "parts that are not trained: vision, projector, …"),
    "flash_attention": Word("model.attention", _KERNELS),
    "sdp_attention": Word("model.attention", _KERNELS),
    "eager_attention": Word("model.attention", "model.attention=eager"),
    "saves_per_epoch": Word("checkpoint.every_steps", _EVERY),
    "evals_per_epoch": Word("evaluation.every_steps", _EVERY),
    "early_stopping_patience": Word("evaluation.early_stopping.patience"),
    "wandb_project": Word("tracking", _TRACKER),
    "use_wandb": Word("tracking", _TRACKER),
    "wandb_name": Word("run.name"),
    "mlflow_experiment_name": Word("tracking", "tracking=[{kind: mlflow, experiment: …}]"),
    "use_mlflow": Word("tracking", "tracking=[{kind: mlflow, experiment: …}]"),
    "use_trackio": Word("tracking", "tracking=[{kind: trackio, project: …}]"),
    "trackio_project_name": Word("tracking", "tracking=[{kind: trackio, project: …}]"),
    "freeze_mm_modules": Word("model.freeze", "parts that are not trained: vision, projector, …"),
    "use_tensorboard": Word("tracking", "tracking=[{kind: tensorboard}]"),
    "liger_fused_linear_cross_entropy": Word(None, "the loss is computed by torch"),
}
