"""The live DDP config is the one that was asked for;

and what verl#5775 did to a run, with megatron-core's own classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.engines.ranks import run_ranks
from vtool.config.megatron_ddp import live_fields
from vtool.config.schema.megatron import DdpConfig, Parallel, WrapConfig
from vtool.diagnostics import Findings
from vtool.engines.megatron.ddp_config import live_ddp_config
from vtool.engines.megatron.groups import start_groups
from vtool.engines.megatron.shim import on_cpu
from vtool.engines.ranks import Ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
WRAP = WrapConfig(use_distributed_optimizer=False)


def live(**ddp: Any) -> Any:
    return live_ddp_config(WRAP, DdpConfig(**ddp), dtype="float32", cpu=True)


def test_every_field_that_is_given_arrives() -> None:
    given = {
        "overlap_grad_reduce": True,
        "bucket_size": 7,
        "check_for_nan_in_grad": True,
        "average_in_collective": True,
    }
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


def qwen2() -> Any:
    """mbridge 0.15.1 reads `rope_theta`, which transformers 5 has moved."""
    from mbridge import AutoBridge
    from transformers import Qwen2Config

    rope = {"rope_type": "default", "rope_theta": 1e6}
    sizes = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = Qwen2Config(
        **sizes, num_attention_heads=2, num_key_value_heads=1, rope_parameters=rope
    )
    config.rope_theta = 1e6
    bridge = AutoBridge.from_config(config, dtype=torch.float32)
    bridge.set_extra_args(
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        use_cpu_initialization=True,
        persist_layer_norm=False,
    )
    return bridge


@contextmanager
def local_layers() -> Iterator[None]:
    """For mbridge's layers, which are Transformer Engine's, those of megatron-core itself.

    All else is the package's own.
    """
    from mbridge.core import llm_bridge
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    def spec(config: Any, use_transformer_engine: bool = True, **more: Any) -> Any:
        return get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization=config.normalization, **more
        )

    before, llm_bridge.get_gpt_decoder_block_spec = llm_bridge.get_gpt_decoder_block_spec, spec
    try:
        yield
    finally:
        llm_bridge.get_gpt_decoder_block_spec = before


def drift(ranks: Ranks) -> dict[str, tuple[bool, list[float]]]:
    """Train a model of mbridge's `get_model`, given no config and given ours.

    Returns:
        Whether its DDP is for a distributed optimizer, and how far the weights of two ranks are
        apart after each step of the plain one.
    """
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    start_groups(Parallel(), ranks)
    found = {}
    for name, ddp_config in (("bridge", None), ("ours", live_fields(WRAP, DdpConfig()))):
        with on_cpu(ranks.device), local_layers():
            torch.manual_seed(0)
            (ddp,) = qwen2().get_model(wrap_with_ddp=True, bf16=False, ddp_config=ddp_config)
            settings = OptimizerConfig(
                optimizer="adam", lr=1e-2, use_distributed_optimizer=WRAP.use_distributed_optimizer
            )
            optimizer = get_megatron_optimizer(settings, [ddp], use_gloo_process_groups=False)
            apart = []
            for step in range(5):
                ddp.zero_grad_buffer()
                optimizer.zero_grad()
                generator = torch.Generator().manual_seed(10 * step + ranks.rank)
                ids = torch.randint(128, (2, 8), generator=generator)
                ddp(ids, torch.arange(8).expand(2, 8), None).pow(2).mean().backward()
                finalize_model_grads([ddp], None)
                optimizer.step()
                mine = torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()])
                copies = [torch.empty_like(mine) for _ in range(2)]
                torch.distributed.all_gather(copies, mine)
                apart.append(float((copies[0] - copies[1]).abs().max()))
            found[name] = ddp.ddp_config.use_distributed_optimizer, apart
    return found


def test_a_bridges_default_config_drifts_from_a_plain_optimizer_silently_and_ours_does_not() -> (
    None
):
    """verl#5775, with the real mbridge:

    `wrap_config.use_distributed_optimizer=false` did not arrive in what `get_model` builds.
    """
    pytest.importorskip("mbridge", reason="mbridge is not installed")
    found = run_ranks(drift, 2)[0]
    print(found)
    (of_bridge, apart), (of_ours, together) = found["bridge"], found["ours"]
    assert of_bridge is True
    assert apart[0] > 1e-3
    assert apart[-1] > 2 * apart[0]
    assert of_ours is False
    assert together == [0.0] * 5
