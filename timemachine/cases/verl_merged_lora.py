"""Take the merged weights of a LoRA that verl hands to the server, and compare with what is live.

usage: verl_merged_lora.py FOLDER_OF_VERL
"""

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from take import take_all
from tiny_lora import adapted, tell_apart
from tiny_models import make

live, served = adapted(), make("llama")
whole = SimpleNamespace(summon_full_params=lambda *_, **__: contextlib.nullcontext())
names = take_all(
    f"{sys.argv[1]}/verl/utils/fsdp_utils.py",
    ("backup_base_model_weights", "restore_base_model_weights", "_merge_or_unmerge_lora_",
     "_clean_merged_lora_", "fsdp_merge_unmerge", "normalize_peft_param_name",
     "merged_lora_context"),
    torch=torch, FSDP=whole, fsdp_version=lambda module: 1,
    contextmanager=contextlib.contextmanager,
)  # fmt: skip
nothing = ("load_fsdp_model_to_gpu", "log_gpu_memory_usage", "logger", "get_device_id")
names |= dict.fromkeys(nothing, lambda *_, **__: None)  # nothing is sharded, nor on a GPU
names |= {"convert_weight_keys": lambda params, model: params, "DTensor": ()}
file = f"{sys.argv[1]}/verl/workers/engine/fsdp/transformer_impl.py"
own = "_merged_lora_per_tensor_param"
methods = ("get_per_tensor_param", *([own] if own in Path(file).read_text() else []))
found = take_all(file, methods, "FSDPEngine", **names)
asked = SimpleNamespace(lora={"merge": True})
engine = {"module": live, "model_config": asked, "_uses_fsdp2_cpu_offload_policy": True}
engine = SimpleNamespace(**engine, _is_offload_param=False, _qat_enabled=False)
setattr(engine, own, lambda: found[own](engine))
weights, _ = found["get_per_tensor_param"](engine)
served.load_state_dict(dict(weights), strict=False)
tell_apart(live, served)
