"""The meaning here of the settings of verl's SFT trainer.

Read from the code that reads them (`trainer/sft_trainer.py`, `workers/engine/`), of January to
August 2026. Which release has which setting is in `releases/verl.json`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vtool.config.foreign.known_words import known_words
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
    SameSetting("optim.min_lr_ratio", "optim.min_lr_ratio", lambda value: value or None),
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
VERL_SUCCESSORS = {
    "model.partial_pretrain": ["model.path"],
    "data.micro_batch_size": ["data.micro_batch_size_per_gpu"],
    "data.multiturn.messages_key": ["data.messages_key"],
    "data.multiturn.tools_key": ["data.tools_key"],
    "data.multiturn.enable_thinking_key": ["data.enable_thinking_key"],
    "data.chat_template": ["model.custom_chat_template"],
    "optim.warmup_steps_ratio": ["optim.lr_warmup_steps_ratio"],
    "optim.lr_scheduler": ["optim.lr_scheduler_type"],
    "model.strategy": ["engine.strategy"],
    "model.fsdp_config.cpu_offload": ["engine.offload_policy"],
    "model.fsdp_config.offload_params": ["engine.param_offload"],
    "model.fsdp_config.model_dtype": ["engine.model_dtype"],
    "model.fsdp_config.wrap_policy.min_num_params": ["engine.wrap_policy.min_num_params"],
    "trainer.checkpoint.save_contents": ["checkpoint.save_contents"],
    "trainer.checkpoint.load_contents": ["checkpoint.load_contents"],
    "ulysses_sequence_parallel_size": ["engine.ulysses_sequence_parallel_size"],
    "use_remove_padding": ["model.use_remove_padding"],
}
"""By setting of the trainer until verl 0.7: the one that has taken its place."""
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


@cache
def verl_names() -> frozenset[str]:
    """Return every setting that verl's SFT trainer has, or had in a release of its table."""
    return frozenset(known_words("verl").history) | UNREAD.keys()


def is_known_to_verl(name: str, fields: Mapping[str, Any] | None = None) -> bool:
    """Return whether the release that is judged by has a setting, or takes it in a group.

    Args:
        fields: the settings to look in; all of that release, unless they are given.
    """
    known = known_words("verl")
    fields = known.fields if fields is None else fields
    if name in fields or name.endswith("_target_") or name in ("hydra", "defaults"):
        return True
    above = name.rpartition(".")[0]
    while above:
        if above in known.open or above == "hydra" or fields.get(above, 0) in (None, []):
            return True
        above = above.rpartition(".")[0]
    return any(one.startswith(f"{name}.") for one in fields)
