"""Build DDP with the overrides that verl's Megatron engine makes of its settings.

usage: verl_bridge_ddp.py FOLDER_OF_VERL
"""

import sys
from types import SimpleNamespace

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from report import report
from take import stub, take

import vtool
from tests.engines.megatron.test_ddp_config import local_layers, qwen2
from vtool.config.schema.megatron import Parallel
from vtool.engines.megatron.groups import start_groups
from vtool.engines.megatron.shim import on_cpu
from vtool.engines.ranks import Ranks

stub("verl.utils.megatron.optimizer", is_muon_layer_wise_config=lambda config: False)
stub("verl.utils.torch_dtypes", PrecisionType=SimpleNamespace(to_dtype=lambda name: torch.float32))
resolve = take(
    f"{sys.argv[1]}/verl/workers/engine/megatron/transformer_impl.py",
    "_resolve_override_ddp_config", "MegatronEngine", torch=torch,
)  # fmt: skip
engine = SimpleNamespace(engine_config=SimpleNamespace(override_ddp_config={}))
engine.optimizer_config = SimpleNamespace(use_precision_aware_optimizer=False)
start_groups(Parallel(), Ranks())
with on_cpu(torch.device("cpu")), local_layers():
    (model,) = qwen2().get_model(wrap_with_ddp=False, bf16=False)
    settings = DistributedDataParallelConfig(**resolve(engine))
    model = DistributedDataParallel(model.config, settings, model)
report("compare", vtool.compare({"engine.ddp_config.grad_reduce_in_fp32": True}, {"model": model}))
