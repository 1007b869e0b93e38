"""Build a model as verl does through mbridge, and ask whether its settings have arrived.

usage: verl_mbridge.py FOLDER_OF_VERL
"""

import sys
from types import SimpleNamespace

import torch
from report import report
from take import stub, take

import vtool
from tests.engines.megatron.test_ddp_config import local_layers, qwen2
from vtool.config.schema.megatron import Parallel
from vtool.engines.megatron.groups import start_groups
from vtool.engines.megatron.shim import on_cpu
from vtool.engines.ranks import Ranks

stub("verl.models.mcore.mbridge", freeze_moe_router=None, make_value_model=None)
stub("verl.models.mcore.config_converter", get_hf_rope_theta=lambda config: config.rope_theta)
make = take(
    f"{sys.argv[1]}/verl/utils/megatron_utils.py", "make_megatron_module",
    MLATransformerConfig=(),
)  # fmt: skip
start_groups(Parallel(), Ranks())
wrap = SimpleNamespace(is_value_model=False, wrap_with_ddp=True, use_distributed_optimizer=False)
bridge = qwen2()
with on_cpu(torch.device("cpu")), local_layers():
    settings = SimpleNamespace(fp16=False, bf16=False)
    config = SimpleNamespace(rope_theta=1e6)
    model, _ = make(wrap, settings, config, bridge=bridge)
asked = {"engine.wrap_config.use_distributed_optimizer": False}
report("compare", vtool.compare(asked, {"model": model}))
