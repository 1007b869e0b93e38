"""Build Megatron-core's optimizer from the settings that verl makes for it.

usage: verl_optimizer.py FOLDER_OF_VERL
"""

import sys

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from report import report
from take import take

import vtool
from tests.engines.megatron.test_ddp_config import local_layers, qwen2
from vtool.config.schema.megatron import Parallel
from vtool.engines.megatron.groups import start_groups
from vtool.engines.megatron.shim import on_cpu
from vtool.engines.ranks import Ranks


class Asked(dict):
    __getattr__ = dict.__getitem__


make = take(
    f"{sys.argv[1]}/verl/utils/megatron/optimizer.py", "init_megatron_optim_config",
    torch=torch, OptimizerConfig=OptimizerConfig, print_rank_0=print,
)  # fmt: skip
asked = Asked(optimizer="adam", lr=1e-3, min_lr=0.0, clip_grad=1.0, weight_decay=0.1)
asked["override_optimizer_config"] = {"bf16": False, "params_dtype": torch.float32}
names = make.__code__.co_varnames[: make.__code__.co_argcount]
given = {"use_distributed_optimizer": False} if "use_distributed_optimizer" in names else {}
start_groups(Parallel(), Ranks())
with on_cpu(torch.device("cpu")), local_layers():
    settings = make(asked, **given)
    model = qwen2().get_model(wrap_with_ddp=True, bf16=False)
    optimizer = get_megatron_optimizer(settings, model, use_gloo_process_groups=False)
asked = {"engine.wrap_config.use_distributed_optimizer": False}
report("compare", vtool.compare(asked, {"optimizer": optimizer}))
