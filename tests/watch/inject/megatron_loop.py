"""Megatron-core's GPTModel, DDP and optimizer on two ranks of the CPU, for torchrun.

usage: megatron_loop.py tensor|data|shared|bf16 [mean-of-means|zeroed]

It prints a digest of the final weights. shared: data parallel, with the distributed optimizer;
bf16: data parallel, with an optimizer of float32 copies; zeroed: buffers are zeroed before a step.
"""

import hashlib
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig

from vtool.engines.megatron.shim import on_cpu, seed_megatron

kind, wrong = sys.argv[1], "mean-of-means" in sys.argv[2:]
shared, half = kind == "shared", kind == "bf16"
LENGTHS, VOCABULARY = ((9, 4), (6, 3)), 64
dist.init_process_group("gloo")
with on_cpu(torch.device("cpu")):
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=2 if kind == "tensor" else 1
    )
    seed_megatron(1, torch.device("cpu"))
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        use_cpu_initialization=True,
        perform_initialization=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=2 if kind == "tensor" else 1,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        bf16=half,
        params_dtype=torch.bfloat16 if half else torch.float32,
    )
    model = GPTModel(config, get_gpt_layer_local_spec(), VOCABULARY, 32, parallel_output=True)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    if half:
        model.bfloat16()
    buffers = DistributedDataParallelConfig(
        use_distributed_optimizer=shared, grad_reduce_in_fp32=half
    )
    ddp = DistributedDataParallel(config, buffers, model)
    ddp.broadcast_params()
    settings = OptimizerConfig(
        optimizer="adam",
        lr=1e-3,
        clip_grad=0.0,
        bf16=half,
        params_dtype=torch.bfloat16 if half else torch.float32,
        use_distributed_optimizer=shared,
    )
    optimizer = get_megatron_optimizer(settings, [ddp], use_gloo_process_groups=False)
    generator = torch.Generator().manual_seed(0 if kind == "tensor" else dist.get_rank())
    for _ in range(3):
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        learnt = sum(sum(lengths) for lengths in LENGTHS)
        for lengths in LENGTHS:
            ids = torch.randint(3, VOCABULARY, (2, 12), generator=generator)
            labels = ids.roll(-1, 1)
            mask = torch.zeros(2, 12)
            for row, n in enumerate(lengths):
                mask[row, 11 - n : 11] = 1
            causal = torch.ones(1, 1, 12, 12).triu(1).bool()
            nll = ddp(ids, torch.arange(12).expand(2, 12), causal, labels=labels)
            divisor = sum(lengths) * len(LENGTHS) if wrong else learnt
            # Megatron-core's DDP averages over data parallel ranks before it sums
            ((nll * mask).sum() / divisor).backward()
        finalize_model_grads([ddp], None)
        if "zeroed" in sys.argv[2:]:
            ddp.zero_grad_buffer()
        optimizer.step()
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().float().numpy().tobytes())
if dist.get_rank() == 0:
    print(digest.hexdigest())
dist.destroy_process_group()
