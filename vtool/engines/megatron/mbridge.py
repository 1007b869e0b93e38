"""engine.bridge=mbridge: mbridge's `get_model` builds and wraps the language model, as in verl.

mbridge has one class a text model; Qwen2-VL's and Qwen2.5-VL's language model is Qwen2 with
positions in three dimensions, and Qwen2's class is what builds it here. What it would choose
itself, and differently, it is given: the fields of `TransformerConfig` and of the DDP config, from
the one function that the native bridge takes them from (verl#5775). What is built has the same
parameters by the same names, so the rest of the engine works with it as before. The tower stays
transformers'. mbridge's own Qwen2.5-VL class (0.15.1) has the sizes of one tower written into it
(`models/qwen2_5_vl/transformer_config.py`), in one DDP with the language model: a step without an
image would change it.
"""

import contextlib
import io
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from vtool.engines.megatron.gpt_model import model_fields, prepare_gpt
from vtool.engines.megatron.shim import on_cpu


def build_gpt_with_mbridge(
    config: Any,
    fields: Mapping[str, Any],
    ddp_config: Any,
    device: torch.device,
    finish: Callable[[Any], None],
    *,
    wrapped: bool,
) -> tuple[Any, Any, Any]:
    """Build this pipeline stage's `GPTModel`, and wrap it.

    Args:
        config: transformers' config of the language model.
        fields: its `transformer_fields`.
        ddp_config: megatron-core's, for its DDP.
        finish: what is done to the `GPTModel` before its DDP wraps it.
        wrapped: whether anything of it is trained.

    Returns:
        The `GPTModel`, its DDP (None where it is not wrapped), and the bridge.
    """
    from mbridge import AutoBridge
    from transformers import Qwen2Config

    fields_of_text = {
        name: value
        for name, value in config.to_dict().items()
        if name not in ("model_type", "rope_parameters")
    }
    as_text = Qwen2Config(**fields_of_text)
    tensor = fields["tensor_model_parallel_size"]
    # it prints the number of parameters
    with on_cpu(device), contextlib.redirect_stdout(io.StringIO()):
        bridge = AutoBridge.from_config(as_text, dtype=fields["params_dtype"])
        bridge.set_extra_args(**fields)
        # Its own has positions in one dimension, and a vocabulary that TP must divide.
        bridge._get_gptmodel_args = lambda: model_fields(config, tensor)
        made = bridge.get_model(
            wrap_with_ddp=wrapped,
            # its wrapper turns inputs and outputs into other dtypes; weights are in params_dtype
            # without it
            bf16=False,
            ddp_config=asdict(ddp_config),
            post_model_creation_callbacks=[
                lambda gpt, **_: prepare_gpt(gpt, device),
                lambda gpt, **_: finish(gpt),
            ],
        )
    (outer,) = made
    return (outer.module, outer, bridge) if wrapped else (outer, None, bridge)
