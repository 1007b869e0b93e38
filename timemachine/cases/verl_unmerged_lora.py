"""Hand over a base model and its adapter as verl's Megatron engine does, and compare with the live.

usage: verl_unmerged_lora.py FOLDER_OF_VERL
"""

import copy
import sys
from types import SimpleNamespace

from take import take, take_all
from tiny_lora import adapted, tell_apart

live = adapted()
served = copy.deepcopy(live)  # base and adapter, as a server has them


def export(model, merge_adapter_weights=True):
    # in the place of Megatron-Bridge, which needs a GPU
    if merge_adapter_weights:
        return copy.deepcopy(model).merge_and_unload().named_parameters()
    return ((name[17:].replace(".base_layer", ""), one) for name, one in model.named_parameters())


utils = f"{sys.argv[1]}/verl/utils/megatron_peft_utils.py"
suffix = take_all(utils, ("STACKED_PARAMS", "add_base_layer_suffix"))["add_base_layer_suffix"]
names = {"add_base_layer_suffix": suffix, "build_peft_config_for_vllm": dict}
names["load_megatron_model_to_gpu"] = lambda *_, **__: None
file = f"{sys.argv[1]}/verl/workers/engine/megatron/transformer_impl.py"
method = take(file, "get_per_tensor_param", "MegatronEngine", **names)
settings = SimpleNamespace(lora={}, hf_config=live.config)
engine = {"module": live, "model_config": settings, "peft_cls": type(live), "_qat_enabled": False}
bridge = SimpleNamespace(export_hf_weights=export)
weights, _ = method(SimpleNamespace(**engine, bridge=bridge, vanilla_bridge=False))
kept = dict(served.named_parameters())
for name, weight in weights:
    if (at := f"base_model.model.{name}") in kept:
        kept[at].data.copy_(weight)
tell_apart(live, served)
