"""A Qwen2-VL model whose language part is megatron-core's.

The model stays transformers' own, with its vision tower, its positions in three dimensions and its
merging of image features; its language model, embedding and head are replaced by thin modules
around one `GPTModel` with multimodal rotary positions. So whoever calls it, the loss or `generate`,
calls what it knows.

Each tensor parallel rank computes the whole tower, from the same images; of a pipeline's stages the
first has it, and no other. Under sequence parallelism tokens are shared out among the tensor
parallel ranks, and under context parallelism (`context`) among its ranks, after the image features
have been merged, and padded to a number that all can share. There is no key and value cache.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vtool.engines.megatron.context import of_all_ranks, on_this_rank
from vtool.engines.megatron.pipeline import Stage, no_features, no_video_features, without_tokens
from vtool.engines.megatron.shim import on_cpu
from vtool.engines.megatron.start import has_transformer_engine
from vtool.engines.megatron.weights import TextShape, partition_dim
from vtool.models.masks import (
    allowed_in_documents,
    allowed_in_rows,
    multiple_of,
    pad_rows,
    to_megatron,
    unpad_rows,
)


def text_shape(config: Any) -> TextShape:
    """What the mapping of weights must know, from transformers' config of the language part."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return TextShape(config.vocab_size, heads, config.num_key_value_heads, head_dim)


def unsupported(config: Any) -> list[str]:
    """What transformers' config of the language part asks for that is not built here, in words."""
    found = []
    rope = config.rope_parameters
    if rope.get("rope_type", "default") != "default" or "mrope_section" not in rope:
        found.append(
            f"rope_parameters {rope}: only multimodal rotary positions without scaling are built"
        )
    if config.hidden_act != "silu":
        found.append(f"hidden_act {config.hidden_act}: only silu is built")
    if getattr(config, "use_sliding_window", False):
        found.append("use_sliding_window: every token sees all before it")
    if getattr(config, "attention_dropout", 0.0):
        found.append(
            f"attention_dropout {config.attention_dropout}: megatron-core's random states are not"
            " those of the other engines"
        )
    return found


def transformer_fields(
    config: Any, dtype: torch.dtype, device: torch.device, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of megatron-core's `TransformerConfig`, of transformers' config of the language
    part.

    Args:
        dtype: of the weights that are computed with.
        device: the run's.
        settings: further fields, by megatron-core's names: the parallel sizes, and what the recipe
            sets.
    """
    shape = text_shape(config)
    fused = (
        "masked_softmax_fusion",
        "bias_activation_fusion",
        "bias_dropout_fusion",
        "gradient_accumulation_fusion",
        "apply_rope_fusion",
    )
    fields: dict[str, Any] = {
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
        # micro-batches differ in length and in rows: stages tell each other what comes
        "variable_seq_lengths": True,
        # there are no experts; the default refuses the line above
        "moe_token_dispatcher_type": "alltoall",
        "bf16": dtype == torch.bfloat16,
        "use_cpu_initialization": device.type == "cpu",
        "perform_initialization": False,  # weights follow, every one of them
        **dict.fromkeys(fused, False),
    }
    return {**fields, **settings}


def model_fields(config: Any, tensor: int) -> dict[str, Any]:
    """What `GPTModel` is told beside that and its layers.

    `tensor`: ranks over which the vocabulary is spread.
    """
    return {
        "vocab_size": text_shape(config).padded_vocabulary(tensor),
        "max_sequence_length": config.max_position_embeddings,
        "position_embedding_type": "mrope",
        "rotary_base": config.rope_parameters["rope_theta"],
        "parallel_output": True,
        "scatter_embedding_sequence_parallel": False,
    }


def build_language(
    config: Any, fields: Mapping[str, Any], device: torch.device, *, own_layers: bool = False
) -> Any:
    """This pipeline stage's share of the language part as megatron-core's `GPTModel`; its weights
    are whatever was in the memory.

    Args:
        config: transformers' config of the language part.
        fields: of it, `transformer_fields`.
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
    prepare(gpt, device, own_layers=own_layers)
    return gpt


def prepare(gpt: Any, device: torch.device, *, own_layers: bool = False) -> None:
    """What is done to a new `GPTModel`, whoever built it, before megatron-core's DDP wraps it."""
    for name, parameter in gpt.named_parameters():
        # Set when megatron-core fills in weights of its own. Without it a norm over all ranks takes
        # shares for copies of each other.
        dim = partition_dim(name)
        for attribute, value in (
            ("tensor_model_parallel", dim is not None),
            ("partition_dim", -1 if dim is None else dim),
            ("partition_stride", 1),
        ):
            setattr(parameter, attribute, value)
    gpt.heeds_masks = heeds_masks(gpt.config, device, own_layers)
    if gpt.config.sequence_parallel and gpt.post_process:
        # Its input is gathered before it, for the few positions that are asked for; the gather sums
        # the gradients of the ranks.
        gpt.output_layer.sequence_parallel = False
        gpt.output_layer.disable_grad_reduce = True


def replace_language(model: Any, gpt: Any, stage: Stage) -> None:
    """Put a `GPTModel` in the place of the language part of transformers' model, and let go of
    that.

    On a pipeline stage behind the first the tower goes too.
    """
    text = model.config.get_text_config()
    model.model.language_model = Language(gpt, stage)
    model.lm_head = _Head(gpt, text.vocab_size, stage)
    if not stage.first:
        model.model.visual = None
        # `generate` asks for them before it calls the model
        model.model.get_image_features = no_features
        model.model.get_video_features = no_video_features
        model.register_forward_pre_hook(without_tokens, with_kwargs=True)
    # Without a cache: `generate` calls the model with the whole text for each token.
    model.generates_with_cache = False
    model.heeds_masks = gpt.heeds_masks


def recompute_layers(gpt: Any, device: torch.device) -> None:
    """Keep only what goes into each layer, and compute the rest again in the backward pass.

    With torch's own checkpointing: megatron-core's asks for the state of CUDA's generators.
    """
    for layer in gpt.decoder.layers:
        layer.forward = partial(
            checkpoint, partial(_under_the_shim, device, layer.forward), use_reentrant=False
        )


def _under_the_shim(
    device: torch.device, forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    with on_cpu(device):  # the backward pass that computes it again is not in that of its caller
        return forward(*args, **kwargs)


class Language(nn.Module):
    """Stands where transformers has its text model: from embeddings [B, S, H] to hidden states [B,
    S, H].

    On a pipeline stage that is not the first, the embeddings are not read; on one that is not the
    last, nobody reads the hidden states.
    """

    def __init__(self, gpt: Any, stage: Stage) -> None:
        super().__init__()
        self.gpt = gpt
        self.stage = stage
        self.embedding = _Embedding(gpt)
        self.sharing = gpt.config.tensor_model_parallel_size if gpt.config.sequence_parallel else 1
        """Ranks among which tokens are shared out where matrices are whole."""

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(
        self,
        inputs_embeds: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        documents: Sequence[int] | None = None,
        **_: Any,
    ) -> Any:
        from megatron.core import tensor_parallel
        from transformers.modeling_outputs import BaseModelOutputWithPast

        config, gpt, context = self.gpt.config, self.gpt, self.gpt.pg_collection.cp
        rows, length, size = inputs_embeds.shape
        multiple = multiple_of(self.sharing, config.context_parallel_size)
        keep = (
            inputs_embeds.new_ones(rows, length, dtype=torch.bool)
            if attention_mask is None
            else attention_mask != 0
        )
        # Of whole rows: megatron-core cuts a context parallel rank's own pieces out of them.
        places, kept = pad_rows(
            _positions(position_ids, rows, length, inputs_embeds.device).permute(1, 2, 0),
            keep,
            multiple,
        )
        with on_cpu(self.stage.ranks.device):
            hidden = None
            if self.stage.first:
                embedded = pad_rows(inputs_embeds, keep, multiple)[0]
                hidden = on_this_rank(embedded.transpose(0, 1), context).contiguous()
                if config.sequence_parallel:
                    hidden = tensor_parallel.scatter_to_sequence_parallel_region(hidden)
            elif not self.stage.scheduled:
                share = kept.shape[1] // (config.context_parallel_size * self.sharing)
                gpt.set_input_tensor(self.stage.receive((share, rows, size), config.pipeline_dtype))
            mask = _mask(kept) if documents is None else _block_mask(documents, kept)
            assert mask is None or gpt.heeds_masks, (
                "rows that are padded on the left come one by one to layers that look at no mask"
            )
            hidden = gpt.decoder(
                hidden_states=hidden,
                attention_mask=mask,
                rotary_pos_emb=gpt.rotary_pos_emb(places.permute(2, 0, 1), gpt.mrope_section),
            )
            if not self.stage.last:
                self.stage.hand_on(hidden)
                return BaseModelOutputWithPast(last_hidden_state=inputs_embeds)
            if config.sequence_parallel:
                hidden = tensor_parallel.gather_from_sequence_parallel_region(hidden)
            hidden = of_all_ranks(hidden, context)
        return BaseModelOutputWithPast(last_hidden_state=unpad_rows(hidden.transpose(0, 1), length))


class _Embedding(nn.Module):
    """Stands where transformers has its embedding: from ids [B, S] to [B, S, H]."""

    def __init__(self, gpt: Any) -> None:
        super().__init__()
        self._gpt = (gpt,)  # a tuple: its parameters are counted once

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self._gpt[0].embedding.word_embeddings.weight
        return weight

    def forward(self, ids: Tensor) -> Tensor:
        with on_cpu(ids.device):
            embedded: Tensor = self._gpt[0].embedding.word_embeddings(ids)
        return embedded


class _Head(nn.Module):
    """Stands where transformers has its head:

    from hidden states [B, K, H] to logits [B, K, V], whole on every rank and every stage.
    """

    def __init__(self, gpt: Any, vocabulary: int, stage: Stage) -> None:
        super().__init__()
        self._gpt = (gpt,)
        self.vocabulary = vocabulary
        self.stage = stage

    def forward(self, hidden: Tensor) -> Tensor:
        from megatron.core import tensor_parallel

        (gpt,) = self._gpt
        if not self.stage.last:
            return self.stage.from_last(
                hidden.new_empty(*hidden.shape[:2], self.vocabulary, dtype=gpt.config.params_dtype)
            )
        weight = (
            gpt.shared_embedding_or_output_weight()
            if gpt.share_embeddings_and_output_weights
            else None
        )
        with on_cpu(self.stage.ranks.device):
            logits, _ = gpt.output_layer(hidden.transpose(0, 1).contiguous(), weight=weight)
            whole: Tensor = tensor_parallel.gather_from_tensor_model_parallel_region(logits)
        return self.stage.from_last(whole[..., : self.vocabulary].transpose(0, 1))


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
        wide = hidden.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normal.to(hidden.dtype)


def heeds_masks(config: Any, device: torch.device, own: bool) -> bool:
    """Whether attention looks at the mask that it is given.

    Told that it is causal, that of Transformer Engine does not
    (`extensions/transformer_engine.py`), nor does megatron-core's own fused softmax
    (`fusions/fused_softmax.py`): padding on the left of a row would be read.

    Args:
        config: megatron-core's `TransformerConfig`.
        device: the run's.
        own: see `build_language`.
    """
    of_te = config.context_parallel_size > 1 or (has_transformer_engine(device) and not own)
    return not of_te and not config.masked_softmax_fusion


def layers_of(config: Any, device: torch.device, own: bool) -> Any:
    """Transformer Engine's layers where it is installed and the run has a GPU, else megatron-core's
    own.
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
    """Attention over context parallel ranks:

    Transformer Engine's, for megatron-core's own asserts that there is one (see `context`).
    """
    from megatron.core.extensions.transformer_engine import TEDotProductAttention

    return TEDotProductAttention


def _positions(given: Tensor | None, rows: int, length: int, device: torch.device) -> Tensor:
    """Positions in time, height and width [3, B, S], from whatever transformers' model hands to its
    text model.
    """
    if given is None:
        return torch.arange(length, device=device).expand(3, rows, length)
    if given.ndim == 2:
        return given.expand(3, rows, length)
    return given[-3:].expand(3, rows, length)  # of four, the first is the place in the text


def _mask(kept: Tensor) -> Tensor | None:
    """What each token must not see, bool [B, 1, S, S], or None where that is no more than what
    comes after it.

    A row that is padded at its end needs no mask: nothing before the padding sees it. Megatron-core
    takes None for causal, and adds nothing to a mask that it is given.
    """
    return to_megatron(allowed_in_rows(kept)) if bool((kept[:, 1:] > kept[:, :-1]).any()) else None


def _block_mask(documents: Sequence[int], kept: Tensor) -> Tensor:
    """The same for documents in one row;

    the padding at its end, of tensor parallelism, is one more.
    """
    missing = kept.shape[1] - sum(documents)
    return to_megatron(
        allowed_in_documents([*documents, *([missing] if missing else [])], kept.device)
    )
