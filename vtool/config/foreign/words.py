"""Words of other trainers, and the setting that each is here: the one table of them.

`vtool explain` knows them, a message about an unknown setting does, and `validate-config --from`
translates by them. Which release of a trainer has which word is in `releases/`, read from its
wheels.
"""

from collections.abc import Mapping

from vtool.config.foreign.more_words import AXOLOTL_WORDS, PEFT_WORDS, VERL_WORDS
from vtool.config.foreign.trainers import TRAINERS
from vtool.config.foreign.word import (
    NO_COUNTERPART,
    Word,
    adamw_name,
    as_it_is,
    attention_name,
    best_score,
    family_name,
    one_of_these,
    positive_number,
    schedule_name,
    whole_steps,
)
from vtool.config.schema.tracking import TRACKERS

_SIZES = "data.global_batch_size counts the rows of a step, over all processes and micro-batches"
_STEPS = "a number of optimizer steps; -1 there means: by epochs"
_TRACK = f"a list of trackers: tracking=[{{kind: NAME}}], of {', '.join(TRACKERS)}"
_HUB = "a folder, or the name of a model on the hub: model.path=ORGANIZATION/NAME"
_OFFLINE = "nothing is sent while it trains"
_ADAPTER = "train.from=RUN begins a new run with the adapter of RUN"
_ENGINE = "engine=fsdp2 shards weights, gradients and optimizer state with torch's own FSDP2"
_QUANTIZED = "lora.base_dtype=nf4 (QLoRA): the base of adapters in 4 bits, and nothing else"
_LAST = "checkpoint.every_steps writes checkpoints; the newest and the best are kept"
_FROZEN = "model.freeze says which parts are not trained: vision, projector, language"
_TEMPLATE = "the chat template is the model's own; data.chat_template names another"
_ATTENTION = "with sdpa, varlen or flash_attention_2 packed rows do not see one another"
_SYSTEM = "a row's own first message says it: {role: system, content: …}"
_SHUFFLED = "rows are in another order in each epoch, by run.seed"
_LOGGED = "a tracker's own variables say it: WANDB_PROJECT, or tracking=[{kind: wandb, project: …}]"
_LAYOUT = "found from the rows: {format: auto, path: …}; docs/data.md has the layouts"
_COMPILED = "the model is not compiled"
_ROWS = "a list: data.train=[{format: messages, path: rows.jsonl}]"
_PACKED = "data.packing=token_budget with data.micro_batch_tokens"
_HELD_BACK = "the share of rows held back, by what is in them"

WORDS: Mapping[str, Word] = {
    # rows of a step
    "per_device_train_batch_size": Word(
        "data.micro_batch_size", "the rows of one forward pass; " + _SIZES
    ),
    "gradient_accumulation_steps": Word(
        "data.global_batch_size",
        _SIZES + "; micro-batches follow from data.micro_batch_size",
    ),
    "per_device_eval_batch_size": Word("evaluation.batch_size", convert=positive_number),
    "auto_find_batch_size": Word("data.micro_batch_size", "data.micro_batch_size=auto"),
    "dataloader_num_workers": Word("data.workers", convert=as_it_is),
    "dataloader_drop_last": Word(
        None, "no row is left out: the last step of an epoch may have fewer"
    ),
    "train_sampling_strategy": Word(None, _SHUFFLED),
    "shuffle_dataset": Word(None, _SHUFFLED),
    "disable_shuffling": Word(None, _SHUFFLED),
    "dataset_shuffle": Word(None, _SHUFFLED),
    "train_dataloader_shuffle": Word(None, _SHUFFLED),
    "average_tokens_across_devices": Word(
        None, "always so: the loss is a mean over the tokens of all processes and micro-batches"
    ),
    "group_by_length": Word("data.packing", "data.packing=token_budget puts rows into one"),
    # length
    "num_train_epochs": Word("train.epochs", "", positive_number),
    "max_steps": Word("train.steps", _STEPS, positive_number),
    "logging_steps": Word(None, "metrics.jsonl has a line for every step"),
    "logging_first_step": Word(None, "metrics.jsonl has a line for every step"),
    "logging_strategy": Word(None, "metrics.jsonl has a line for every step"),
    # optimizer
    "learning_rate": Word("optim.lr", "", as_it_is),
    "weight_decay": Word(
        "optim.weight_decay", "of tensors with two or more dimensions only", as_it_is
    ),
    "adam_beta1": Word("optim.betas", "a list of two: optim.betas=[0.9,0.95]"),
    "adam_beta2": Word("optim.betas", "a list of two: optim.betas=[0.9,0.95]"),
    "adam_epsilon": Word("optim.eps", "", as_it_is),
    "max_grad_norm": Word("optim.clip_norm", "null is off; there 0 is"),
    "optim": Word(
        "optim.name",
        "AdamW alone, in torch's fused form, and no sgd, adafactor or lion; adamw_torch_8bit and"
        " adamw_8bit: optim.states=8bit as well",
        adamw_name,
    ),
    "lr_scheduler_type": Word(
        "optim.schedule", "cosine, linear, wsd or constant, each with a warm-up", schedule_name
    ),
    "lr_scheduler_kwargs": Word("optim.min_lr_ratio", "the floor, as a part of optim.lr"),
    "warmup_ratio": Word("optim.warmup_ratio", "", as_it_is),
    "warmup_steps": Word(
        "optim.warmup_steps", "below 1 it is a share there: optim.warmup_ratio", whole_steps
    ),
    "vit_lr": Word("optim.groups.vision.lr", "", as_it_is),
    "aligner_lr": Word("optim.groups.projector.lr", "", as_it_is),
    "loraplus_lr_ratio": Word(None, "A and B have one rate; optim.groups gives parts their own"),
    "lorap_lr_ratio": Word(None, "A and B have one rate; optim.groups gives parts their own"),
    "use_galore": Word("optim.name", "AdamW is the one that there is"),
    "use_apollo": Word("optim.name", "AdamW is the one that there is"),
    "use_badam": Word("optim.name", "AdamW is the one that there is"),
    "use_muon": Word("optim.name", "AdamW is the one that there is"),
    "use_adam_mini": Word("optim.name", "AdamW is the one that there is"),
    "optimizer": Word("optim.name", "AdamW is the one that there is"),
    "tf32": Word(None, "torch's own default is kept; model.dtype=bfloat16 is the fast one"),
    "torch_compile": Word(None, _COMPILED),
    "neftune_noise_alpha": Word(None, "nothing is added to embeddings"),
    "label_smoothing_factor": Word(None, "the loss is the NLL of the supervised tokens"),
    "use_liger_kernel": Word(None, "the loss is computed by torch, and proved by vtool verify"),
    "enable_liger_kernel": Word(None, "the loss is computed by torch, and proved by vtool verify"),
    "use_unsloth": Word(None, "no kernels of other packages are used"),
    # model
    "model": Word("model.path", _HUB, as_it_is),
    "model_name_or_path": Word("model.path", _HUB, as_it_is),
    "model_type": Word("model.family", "found from model.path there", family_name),
    "model_revision": Word("model.revision", "", as_it_is),
    "template": Word(None, _TEMPLATE),
    "system": Word(None, _SYSTEM),
    "default_system": Word(None, _SYSTEM),
    "enable_thinking": Word(
        "data.template_arguments",
        "an argument of the model's own chat template, where that reads it",
        lambda value: {"enable_thinking": value} if isinstance(value, bool) else NO_COUNTERPART,
    ),
    "chat_template_path": Word("data.chat_template", "a file, or a name of the model's", as_it_is),
    "trust_remote_code": Word(
        "model.modeling", "a modeling file of your own; none of a hub is run"
    ),
    "torch_dtype": Word("model.dtype", "float32, bfloat16 or float64"),
    "dtype": Word("model.dtype", "float32, bfloat16 or float64"),
    "bf16": Word("model.dtype", "model.dtype=bfloat16 computes in it; weights stay in float32"),
    "fp16": Word("model.dtype", "float16 needs a scaled loss: take bfloat16"),
    "pure_bf16": Word("model.dtype", "model.dtype=bfloat16; weights stay in float32"),
    "attn_impl": Word("model.attention", _ATTENTION, attention_name),
    "attn_implementation": Word("model.attention", _ATTENTION, attention_name),
    "flash_attn": Word("model.attention", _ATTENTION, attention_name),
    "gradient_checkpointing": Word("model.gradient_checkpointing", "", bool),
    "disable_gradient_checkpointing": Word("model.gradient_checkpointing", "the opposite"),
    "gradient_checkpointing_kwargs": Word(
        "model.gradient_checkpointing", "each block is computed again in the backward pass"
    ),
    "use_reentrant_gc": Word(
        "model.gradient_checkpointing", "each block is computed again in the backward pass"
    ),
    "vit_gradient_checkpointing": Word(
        "model.gradient_checkpointing", "of the tower as of the language model"
    ),
    "freeze_vit": Word("model.freeze.vision", _FROZEN, bool),
    "freeze_aligner": Word("model.freeze.projector", _FROZEN, bool),
    "freeze_llm": Word("model.freeze.language", _FROZEN, bool),
    "freeze_vision_tower": Word("model.freeze.vision", _FROZEN, bool),
    "freeze_multi_modal_projector": Word("model.freeze.projector", _FROZEN, bool),
    "freeze_language_model": Word("model.freeze.language", _FROZEN, bool),
    "load_in_4bit": Word("lora.base_dtype", _QUANTIZED),
    "quantization_type": Word("lora.base_dtype", _QUANTIZED),
    "bnb_4bit_quant_type": Word("lora.base_dtype", _QUANTIZED),
    "load_in_8bit": Word(None, "the base of adapters is in 4 bits, lora.base_dtype=nf4, or whole"),
    "quantization_bit": Word("lora.base_dtype", _QUANTIZED),
    "quant_bits": Word("lora.base_dtype", _QUANTIZED),
    "quant_method": Word("lora.base_dtype", _QUANTIZED),
    # adapters
    "use_peft": Word("lora", "a group: lora={rank: 16} trains adapters, lora=null the weights"),
    "finetuning_type": Word("lora", "a group: lora={rank: 16}; lora=null is `full`"),
    "tuner_type": Word("lora", "a group: lora={rank: 16}; lora=null is `full`"),
    "train_type": Word("lora", "a group: lora={rank: 16}; lora=null is `full`"),
    "lora_r": Word("lora.rank", "", as_it_is),
    "lora_rank": Word("lora.rank", "", as_it_is),
    "lora_alpha": Word("lora.alpha", "twice the rank unless it is given", as_it_is),
    "lora_dropout": Word("lora.dropout", "", as_it_is),
    "use_dora": Word("lora.dora", "", bool),
    "use_rslora": Word("lora.rslora", "", bool),
    "lora_target": Word("lora.targets", "ends of names; null is all linear layers"),
    "lora_target_modules": Word("lora.targets", "ends of names; null is all linear layers"),
    "target_modules": Word("lora.targets", "ends of names; null is all linear layers"),
    "additional_target": Word("lora.modules_to_save", "trained whole, in addition to the adapters"),
    "modules_to_save": Word("lora.modules_to_save", "trained whole, in addition to the adapters"),
    "lora_modules_to_save": Word(
        "lora.modules_to_save", "trained whole, in addition to the adapters"
    ),
    "adapter_name_or_path": Word("train.from", _ADAPTER),
    "adapters": Word("train.from", _ADAPTER),
    # rows
    "dataset": Word("data.train", _ROWS),
    "dataset_name": Word("data.train", _ROWS),
    "dataset_dir": Word("data.train", "format llama_factory: the path is dataset_info.json"),
    "val_dataset": Word("data.validation", "a list, as data.train is"),
    "eval_dataset": Word("data.validation", "a list, as data.train is"),
    "val_size": Word("data.split.validation", _HELD_BACK),
    "split_dataset_ratio": Word("data.split.validation", _HELD_BACK),
    "dataset_train_split": Word("data.train", "a list of rows' files"),
    "dataset_test_split": Word("data.validation", "a list, as data.train is"),
    "dataset_config": Word("data.train", "a list of rows' files"),
    "dataset_text_field": Word("data.train", _LAYOUT),
    "columns": Word("data.train", _LAYOUT),
    "dataset_kwargs": Word("data.train", _LAYOUT),
    "media_dir": Word(
        "data.train", "image_folder of a source: {format: …, path: …, image_folder: …}"
    ),
    "interleave_prob": Word("data.train", "weight of each source"),
    "mix_strategy": Word("data.train", "weight of each source"),
    "max_samples": Word("data.train", "limit of a source: {format: …, path: …, limit: 1000}"),
    "interleave_probs": Word("data.train", "weight of each source"),
    "cutoff_len": Word(
        "data.max_length", "longer rows are errors unless data.on_overlong says otherwise", as_it_is
    ),
    "max_length": Word(
        "data.max_length", "longer rows are errors unless data.on_overlong says otherwise", as_it_is
    ),
    "max_seq_length": Word(
        "data.max_length", "longer rows are errors unless data.on_overlong says otherwise", as_it_is
    ),
    "truncation_strategy": Word("data.on_overlong", "error, drop or truncate"),
    "truncation_mode": Word("data.on_overlong", "error, drop or truncate"),
    "packing": Word("data.packing", _PACKED),
    "neat_packing": Word("data.packing", _PACKED),
    "padding_free": Word("data.packing", _PACKED),
    "image_max_pixels": Word("data.image.max_pixels", "", as_it_is),
    "image_min_pixels": Word("data.image.min_pixels", "", as_it_is),
    "max_pixels": Word("data.image.max_pixels", "", as_it_is),
    "video_min_pixels": Word("data.video.min_pixels", "", as_it_is),
    "video_maxlen": Word("data.video.max_frames", "", as_it_is),
    "video_max_pixels": Word("data.video.max_pixels", "", as_it_is),
    "video_fps": Word("data.video.fps", "", as_it_is),
    "assistant_only_loss": Word(None, "answers alone are learnt; weight: 0 leaves one out"),
    "completion_only_loss": Word(None, "answers alone are learnt; weight: 0 leaves one out"),
    "train_on_prompt": Word(None, "answers alone are learnt"),
    "mask_history": Word(None, "answers alone are learnt; weight: 0 in a row leaves one out"),
    "loss_scale": Word(None, "answers alone are learnt; weight: 0 in a row leaves one out"),
    "streaming": Word(None, "rows are read as they are needed; all are audited before a step"),
    "preprocessing_num_workers": Word("data.workers", "rows are encoded while the model trains"),
    "dataset_num_proc": Word("data.workers", "rows are encoded while the model trains"),
    "load_from_cache_file": Word(
        "data.audit_cache",
        "--fresh audits every row again",
        one_of_these({"true": "use", "false": None}),
    ),
    "lazy_tokenize": Word(None, "rows are encoded as they are needed"),
    "packing_strategy": Word("data.packing", _PACKED),
    "overwrite_cache": Word(
        "data.audit_cache",
        "--fresh audits every row again",
        one_of_these({"true": "renew", "false": None}),
    ),
    "remove_unused_columns": Word(
        None, "keys of a row that are not known are refused, not removed"
    ),
    # run
    "output_dir": Word("run.dir", "", as_it_is),
    "run_name": Word("run.name", "", as_it_is),
    "seed": Word("run.seed", "", as_it_is),
    "data_seed": Word("run.seed", "one seed for weights, dropout and the order of rows"),
    "report_to": Word("tracking", _TRACK),
    "project": Word("tracking", _LOGGED),
    "use_swanlab": Word("tracking", _TRACK),
    "logging_dir": Word("tracking", "TensorBoard writes into the run's folder"),
    "overwrite_output_dir": Word(
        "checkpoint.resume", "a run that is there is resumed; nothing is overwritten"
    ),
    "resume_from_checkpoint": Word("checkpoint.resume", "auto resumes in the run's own folder"),
    "save_steps": Word("checkpoint.every_steps", "", positive_number),
    "save_strategy": Word("checkpoint.every_steps", _LAST),
    "save_total_limit": Word("checkpoint.keep_last", "", positive_number),
    "save_only_model": Word(None, "a checkpoint has everything; the export has the weights alone"),
    "save_safetensors": Word(None, "all weights are safetensors"),
    "eval_steps": Word("evaluation.every_steps", "", whole_steps),
    "eval_strategy": Word("evaluation.every_steps", "by steps; null is off"),
    "evaluation_strategy": Word("evaluation.every_steps", "by steps; null is off"),
    "load_best_model_at_end": Word(
        "checkpoint.keep_best", "checkpoint.keep_best.metric=validation_nll exports the best"
    ),
    "metric_for_best_model": Word(
        "checkpoint.keep_best.metric", "validation_nll and others", best_score
    ),
    "greater_is_better": Word(
        "checkpoint.keep_best.mode",
        "min or max",
        one_of_these({"true": "max", "false": "min"}),
    ),
    "early_stopping_steps": Word(
        "evaluation.early_stopping.patience",
        "evaluations without a better score; evaluation.early_stopping.metric says which score",
        positive_number,
    ),
    "early_stop_interval": Word(
        "evaluation.early_stopping.patience",
        "evaluations without a better score; evaluation.early_stopping.metric says which score",
        positive_number,
    ),
    "max_new_tokens": Word("evaluation.generate.max_new_tokens", "", as_it_is),
    "predict_with_generate": Word(
        "evaluation.generate.max_new_tokens", "answers are generated at each evaluation"
    ),
    "deepspeed": Word("engine", _ENGINE),
    "fsdp": Word("engine", _ENGINE),
    "fsdp_config": Word("engine", _ENGINE),
    "ddp_backend": Word(None, "gloo on a CPU, nccl on CUDA, hccl on an NPU"),
    "ddp_timeout": Word(None, "torch's own limit is kept"),
    "ddp_find_unused_parameters": Word(
        None, "parameters without a gradient in a step are left out of the reduction by itself"
    ),
    "push_to_hub": Word(None, _OFFLINE),
    "hub_model_id": Word(None, _OFFLINE),
    "use_hf": Word(None, _OFFLINE),
    "plot_loss": Word(None, "vtool report RUN draws it"),
    "include_num_input_tokens_seen": Word(None, "metrics.jsonl has tokens of every step"),
    "do_train": Word(None, "vtool train sft always trains"),
    "do_eval": Word("evaluation.every_steps", "validation rows are scored where there are any"),
    "stage": Word("kind", "sft is the one that there is"),
    # of TRL, LLaMA-Factory or ms-swift, and less common
    "datasets": Word("data.train", _ROWS),
    "test_split_size": Word("data.split.validation", _HELD_BACK),
    "stopping_strategy": Word(
        "data.train", "weight of each source: the one that is used up first ends the epoch"
    ),
    "packing_length": Word("data.micro_batch_tokens", _PACKED),
    "use_cpu": Word("device.kind", "auto, cpu, cuda or npu", one_of_these({"true": "cpu"})),
    "ddp_bucket_cap_mb": Word("engine.bucket_cap_mb", "of engine=ddp", as_it_is),
    "enable_torch_profiler": Word("profiler", "profiler={tool: torch, profile_interval: [5, 7]}"),
    "loss_type": Word(None, "the loss is the NLL of the supervised tokens"),
    **PEFT_WORDS,
    **VERL_WORDS,
    **AXOLOTL_WORDS,
}


def counterpart_of(word: str) -> str | None:
    """Return the setting here for a word of other trainers; None for one that is not known."""
    if (known := WORDS.get(word)) is None:
        titles = [trainer.title for trainer in TRAINERS.values() if word in trainer.fields]
        return f"`{word}` of {' and '.join(titles)} has no setting here" if titles else None
    if known.ours is None:
        return f"`{word}` of other trainers has no setting here: {known.how}"
    note = f" ({known.how})" if known.how else ""
    return f"`{word}` of other trainers is `{known.ours}` here{note}"
