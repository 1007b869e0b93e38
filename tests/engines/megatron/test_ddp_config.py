"""The live DDP config is the one that was asked for; and what verl#5775 did to a run, with megatron-core's own classes."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.engines.ranks import run_ranks
from vtool.config.schema.megatron import DdpConfig, Parallel, WrapConfig
from vtool.diagnostics import Findings
from vtool.engines.megatron.ddp_config import live_ddp_config
from vtool.engines.megatron.groups import start_groups
from vtool.engines.megatron.shim import on_cpu
from vtool.engines.ranks import Ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
# What a bridge begins with where it is given no ddp_config (mbridge 0.15.1, `get_model`).
BRIDGE = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True}
WRAP = WrapConfig(use_distributed_optimizer=False)


def live(**ddp: Any) -> Any:
    return live_ddp_config(WRAP, DdpConfig(**ddp), dtype="float32", cpu=True)


def test_every_field_that_is_given_arrives() -> None:
    given = {"overlap_grad_reduce": True, "bucket_size": 7, "check_for_nan_in_grad": True, "average_in_collective": True}
    made = live(**given)
    assert {name: getattr(made, name) for name in given} == given
    assert (made.use_distributed_optimizer, made.grad_reduce_in_fp32) == (False, True)


def test_contradictions_are_raised_all_at_once() -> None:
    with pytest.raises(Findings) as raised:
        live(use_distributed_optimizer=True, use_megatron_fsdp=True)
    assert [(one.rule, one.parameter) for one in raised.value.diagnostics] == [
        ("megatron-ddp-conflict", "engine.ddp_config.use_distributed_optimizer"),
        ("megatron-ddp-conflict", "engine.ddp_config.use_megatron_fsdp"),
    ]


def drift(ranks: Ranks) -> dict[str, list[float]]:
    """How far the weights of two ranks are apart after each step of the plain optimiser: with a bridge's default, and with ours."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig

    start_groups(Parallel(), ranks)
    found: dict[str, list[float]] = {}
    with on_cpu():
        config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, use_cpu_initialization=True)
        for name, ddp_config in (("bridge", DistributedDataParallelConfig(**BRIDGE)), ("ours", live())):
            torch.manual_seed(0)
            module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
            ddp = DistributedDataParallel(config, ddp_config, module)
            settings = OptimizerConfig(optimizer="adam", lr=1e-2, use_distributed_optimizer=WRAP.use_distributed_optimizer)
            optimizer = get_megatron_optimizer(settings, [ddp], use_gloo_process_groups=False)
            found[name] = []
            for step in range(5):
                ddp.zero_grad_buffer()
                optimizer.zero_grad()
                generator = torch.Generator().manual_seed(10 * step + ranks.rank)
                ddp(torch.randn(6, 8, generator=generator)).pow(2).mean().backward()
                finalize_model_grads([ddp], None)
                optimizer.step()
                mine = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
                copies = [torch.empty_like(mine) for _ in range(2)]
                torch.distributed.all_gather(copies, mine)
                found[name].append(float((copies[0] - copies[1]).abs().max()))
    return found


def test_a_bridges_default_beside_a_plain_optimiser_drifts_without_an_error_and_ours_does_not() -> None:
    found = run_ranks(drift, 2)[0]
    print(found)
    assert found["bridge"][0] > 1e-3
    assert found["bridge"][-1] > 2 * found["bridge"][0]
    assert found["ours"] == [0.0] * 5
