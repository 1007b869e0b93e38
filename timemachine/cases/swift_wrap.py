"""Wrap a model as ms-swift does for Megatron, and ask whether its settings have arrived.

usage: swift_wrap.py FOLDER_OF_MS-SWIFT
"""

import contextlib
import dataclasses
import sys
from types import SimpleNamespace

import torch
from megatron.core import mpu, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from report import report
from take import take

import vtool
from tests.engines.megatron.test_ddp_config import local_layers, qwen2
from vtool.config.schema.megatron import Parallel
from vtool.engines.megatron.groups import start_groups
from vtool.engines.megatron.shim import on_cpu
from vtool.engines.ranks import Ranks

wrap = take(
    f"{sys.argv[1]}/swift/megatron/utils/megatron_lm_utils.py", "wrap_model",
    torch=torch, dataclasses=dataclasses, mpu=mpu, tensor_parallel=tensor_parallel,
    DDP=DistributedDataParallel, DistributedDataParallelConfig=DistributedDataParallelConfig,
)  # fmt: skip
asked = SimpleNamespace(bf16=False, fp16=False, use_distributed_optimizer=False)
asked.overlap_param_gather_with_optimizer_step = asked.data_parallel_random_init = False
asked.accumulate_allreduce_grads_in_fp32 = True
start_groups(Parallel(), Ranks())
with on_cpu(torch.device("cpu")), local_layers():
    model = qwen2().get_model(wrap_with_ddp=False, bf16=False)
    stream = SimpleNamespace(wait_stream=lambda other: None)  # a CPU has none
    torch.cuda.Stream = torch.cuda.current_stream = lambda: stream
    torch.cuda.stream = contextlib.nullcontext
    model = wrap(asked, model)
report("compare", vtool.compare({"engine.ddp_config.grad_reduce_in_fp32": True}, {"model": model}))
