"""Megatron-core's `GPTModel` of a Qwen2-VL language model: its config, its layers and its marks."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vtool.config.schema.megatron import TransformerConfig as Fusions
from vtool.engines.megatron.shim import on_cpu
from vtool.engines.megatron.start import has_transformer_engine
from vtool.engines.megatron.weights import TextShape, mark_partition


def text_shape(config: Any) -> TextShape:
    """Return the sizes by which weights are cut, from the language model's config."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return TextShape(config.vocab_size, heads, config.num_key_value_heads, head_dim)


def unsupported(config: Any) -> list[str]:
    """Return in words what the language model's config asks for that is not built."""
    rope, dropout = config.rope_parameters, getattr(config, "attention_dropout", 0.0)
    plain = rope.get("rope_type", "default") == "default" and "mrope_section" in rope
    found = {
        f"rope_parameters {rope}: only multimodal rotary positions without scaling are built": (
            not plain
        ),
        f"hidden_act {config.hidden_act}: only silu is built": config.hidden_act != "silu",
        "use_sliding_window: every token sees all before it": (
            getattr(config, "use_sliding_window", False)
        ),
        f"attention_dropout {dropout}: megatron-core's random states are not those of the other"
        " engines": dropout,
    }
    return [message for message, asked in found.items() if asked]


def transformer_fields(
    config: Any, dtype: torch.dtype, device: torch.device, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of megatron-core's `TransformerConfig`.

    Args:
        config: transformers' config of the language model.
        dtype: of the weights that are computed with.
        device: the run's.
        settings: further fields, by megatron-core's names: the parallel sizes, and what the recipe
            sets.
    """
    shape = text_shape(config)
    return {
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": config.intermediate_size,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.groups,
        "kv_channels": shape.head_dim,
        "layernorm_epsilon": config.rms_norm_eps,
        "mrope_section": list(config.rope_parameters["mrope_section"]),
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": nn.functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        # micro-batches differ in length and in rows: stages send each other what comes
        "variable_seq_lengths": True,
        # there are no experts; the default refuses the line above
        "moe_token_dispatcher_type": "alltoall",
        "bf16": dtype == torch.bfloat16,
        "use_cpu_initialization": device.type == "cpu",
        "perform_initialization": False,  # weights follow, every one of them
        **dict.fromkeys(Fusions.model_fields, False),
        **settings,
    }


def model_fields(config: Any, tensor: int) -> dict[str, Any]:
    """Return the arguments of `GPTModel` besides its `TransformerConfig` and its layers.

    Args:
        tensor: ranks over which the vocabulary is spread.
    """
    return {
        "vocab_size": text_shape(config).padded_vocabulary(tensor),
        "max_sequence_length": config.max_position_embeddings,
        "position_embedding_type": "mrope",
        "rotary_base": config.rope_parameters["rope_theta"],
        "parallel_output": True,
        "scatter_embedding_sequence_parallel": False,
    }


def build_gpt(
    config: Any, fields: Mapping[str, Any], device: torch.device, *, own_layers: bool = False
) -> Any:
    """Build this pipeline stage's `GPTModel`, with whatever was in the memory for weights.

    Args:
        config: transformers' config of the language model.
        fields: its `transformer_fields`.
        device: the run's.
        own_layers: megatron-core's layers also where Transformer Engine is: that joins a norm with
            the matrix behind it, and so hides what goes into the matrix from an adapter.
    """
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer import TransformerConfig

    megatron = TransformerConfig(**fields)
    with on_cpu(device):
        gpt = GPTModel(
            config=megatron,
            transformer_layer_spec=layers_of(megatron, device, own_layers),
            share_embeddings_and_output_weights=config.tie_word_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            **model_fields(config, megatron.tensor_model_parallel_size),
        )
    prepare_gpt(gpt, device, own_layers=own_layers)
    return gpt


def prepare_gpt(gpt: Any, device: torch.device, *, own_layers: bool = False) -> None:
    """Prepare a new `GPTModel`, whoever built it, before megatron-core's DDP wraps it."""
    for name, parameter in gpt.named_parameters():
        mark_partition(parameter, name)
    gpt.heeds_masks = heeds_masks(gpt.config, device, own_layers)
    if gpt.config.sequence_parallel and gpt.post_process:
        # Its input is gathered before it, for the few positions that are asked for; the gather sums
        # the gradients of the ranks.
        gpt.output_layer.sequence_parallel = False
        gpt.output_layer.disable_grad_reduce = True


def recompute_layers(gpt: Any, device: torch.device, count: int) -> None:
    """Keep only what goes into a layer, and compute the rest again in the backward pass.

    With torch's own checkpointing: megatron-core's asks for the state of CUDA's generators.

    Args:
        count: of the layers of the whole model, the first so many.
    """
    for layer in (each for each in gpt.decoder.layers if each.layer_number <= count):
        layer.forward = partial(
            checkpoint, partial(_under_the_shim, device, layer.forward), use_reentrant=False
        )


def _under_the_shim(
    device: torch.device, forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    with on_cpu(device):  # the backward pass that computes it again is not in that of its caller
        return forward(*args, **kwargs)


class RMSNorm(nn.Module):
    """Root mean square norm (arXiv 1910.07467), computed in float32 as transformers does.

    Megatron-core's own, without Transformer Engine, refuses sequence parallelism
    (`transformer/torch_norm.py`). Under that each rank has the gradient of its share of the tokens;
    the mark on the weight has them summed.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(
            torch.ones(hidden_size, dtype=config.params_dtype, device=torch.cuda.current_device())
        )
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the normalized states, in the dtype of `hidden` [..., H]."""
        wide = hidden.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normal.to(hidden.dtype)


def heeds_masks(config: Any, device: torch.device, own: bool) -> bool:
    """Return true where attention reads the mask that it is given.

    Causal attention of Transformer Engine does not (`extensions/transformer_engine.py`), nor does
    megatron-core's own fused softmax (`fusions/fused_softmax.py`): padding on the left of a row
    would be read.

    Args:
        config: megatron-core's `TransformerConfig`.
        device: the run's.
        own: see `own_layers` of `build_gpt`.
    """
    of_te = config.context_parallel_size > 1 or (has_transformer_engine(device) and not own)
    return not of_te and not config.masked_softmax_fusion


def layers_of(config: Any, device: torch.device, own: bool) -> Any:
    """Return the spec of Transformer Engine's layers, or of megatron-core's own.

    Transformer Engine's are taken where it is installed and the run has a GPU.
    """
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer.transformer_block import (
        TransformerBlockSubmodules,
        get_num_layers_to_build,
    )

    if has_transformer_engine(device) and not own:
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec()
    layer = gpt_layer_specs.get_gpt_layer_local_spec(normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
    if config.context_parallel_size > 1:
        layer.submodules.self_attention.submodules.core_attention = attention_over_ranks()
    return TransformerBlockSubmodules(
        layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=RMSNorm
    )


def attention_over_ranks() -> Any:
    """Return the attention over context parallel ranks, which is Transformer Engine's.

    Megatron-core's own asserts that there is one rank (see `context`).
    """
    from megatron.core.extensions.transformer_engine import TEDotProductAttention

    return TEDotProductAttention
