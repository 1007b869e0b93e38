"""Makes a transformers config tiny, whatever its class: known fields get small values that fit."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB, LAYERS, _EXPERTS = (
    128,
    4,
    2,
    32,
    256,
    1024,
    2,
    4,
)


_NAMES_BY_SIZE = {
    HIDDEN: (
        "hidden_size d_model n_embd embed_dim dim out_hidden_size projection_dim"
        " projection_hidden_size hidden_dim text_hidden_size output_dim vision_output_dim"
        " projector_input_dim projector_output_dim qformer_hidden_size embedding_dim"
        " vision_hidden_size block_dim conv_dim encoder_hidden_size decoder_hidden_size"
        " audio_hidden_size model_dim width d_text_config mm_hidden_size"
        " upsample_initial_channel decoder_dim mm_embed_dim"
    ),
    INTERMEDIATE: (
        "encoder_ffn_dim decoder_ffn_dim ffn_dim n_inner ffn_hidden_size d_inner mlp_dim"
        " feed_forward_length block_ff_dim mamba_d_ssm attention_hidden_size mlp_hidden_size"
    ),
    HEADS: (
        "num_attention_heads n_head num_heads encoder_attention_heads decoder_attention_heads"
        " n_heads linear_num_key_heads linear_num_value_heads mamba_n_heads mamba_num_heads"
        " num_attention_groups_q index_n_heads"
    ),
    HEAD_DIM: (
        "head_dim kv_channels v_head_dim qk_nope_head_dim qk_rope_head_dim attention_head_dim"
        " global_head_dim linear_key_head_dim linear_value_head_dim hidden_size_per_layer_input"
        " swa_head_dim swa_v_head_dim"
    ),
    64: "mamba_head_dim mamba_d_head kv_lora_rank index_head_dim",
    48: "q_lora_rank",
    16: "rotary_dim o_lora_rank",
    1: "n_group topk_group num_expert_group mamba_n_groups n_groups mamba_ngroups",
    VOCAB: "vocab_size_per_layer_input",
    256: (
        "max_position_embeddings n_positions max_seq_len max_sequence_length seq_length"
        " max_source_positions n_ctx"
    ),
}
FIXED = {name: size for size, names in _NAMES_BY_SIZE.items() for name in names.split()}
CAPPED = {
    **dict.fromkeys(
        [
            "num_hidden_layers",
            "num_layers",
            "n_layer",
            "n_layers",
            "depth",
            "encoder_layers",
            "decoder_layers",
            "num_encoder_layers",
            "num_decoder_layers",
        ],
        LAYERS,
    ),
    **dict.fromkeys(
        ["num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num", "n_head_kv"],
        KV_HEADS,
    ),
    **dict.fromkeys(
        ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "n_experts"],
        _EXPERTS,
    ),
    **dict.fromkeys(
        ["num_experts_per_tok", "top_k", "moe_topk", "moe_k", "moe_top_k", "num_experts_per_token"],
        2,
    ),
    **dict.fromkeys(["first_k_dense_replace", "num_dense_layers"], 1),
    **dict.fromkeys(["vocab_size", "text_vocab_size", "audio_vocab_size"], VOCAB),
    **dict.fromkeys(["image_size", "input_size"], 56),
}
"""Fields that are made smaller, and never larger."""
OF_ANSWERS = 50
"""The `top_k` that transformers 4 has in every config: of sampling, and not of experts."""
ONE_INDEX = ("deepstack_visual_indexes", "fullatt_block_indexes")


def small(name: str, value: Any) -> Any:
    """Return the tiny value of a field."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if (name, value) == ("top_k", OF_ANSWERS):
        return value
    if name in CAPPED:
        return min(value, CAPPED[name])
    if name in FIXED or "intermediate" in name:
        return FIXED.get(name, INTERMEDIATE)
    for ending, most in (
        ("hidden_size", HIDDEN),
        ("vocab_size", VOCAB),
        ("ffn_size", INTERMEDIATE),
        ("ffn_hidden_size", INTERMEDIATE),
        ("_num_attention_heads", HEADS),
        ("_num_hidden_layers", LAYERS),
    ):
        if name.endswith(ending):
            return min(value, most)
    is_token = name.endswith(("_token_id", "_token_index", "_token")) and value >= VOCAB
    return VOCAB - 124 + sum(map(ord, name)) % 100 if is_token else value


def shrink(config: Any, layers: int = LAYERS) -> Any:
    """Shrink a config and its inner configs in place, and return it."""
    from transformers import PretrainedConfig

    counts = {
        value
        for name, value in vars(config).items()
        if CAPPED.get(name) == LAYERS and isinstance(value, int) and value > layers
    }
    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            shrink(value, layers)
        elif name in ONE_INDEX and isinstance(value, list):
            _set(config, name, [0])
        elif isinstance(value, list | tuple) and (
            len(value) in counts or (name.endswith("_types") and len(value) > layers)
        ):
            # An entry a layer: as many as there are layers now, and no more.
            _set(config, name, [small(name, entry) for entry in list(value)[:layers]])
        elif isinstance(value, dict) and value and all(isinstance(key, int) for key in value):
            # else its keys are not layers
            if kept := {key: entry for key, entry in value.items() if key < layers}:
                _set(config, name, kept)
        elif (
            isinstance(value, dict)
            and name.endswith("_config")
            and all(isinstance(key, str) for key in value)
        ):
            _set(config, name, {key: small(key, entry) for key, entry in value.items()})
        elif (tiny := small(name, value)) != value:
            _set(config, name, min(value, layers) if CAPPED.get(name) == LAYERS else tiny)
    if getattr(config, "kv_lora_rank", None) and hasattr(config, "num_key_value_heads"):
        _set(config, "num_key_value_heads", config.num_attention_heads)  # there are no groups
    if getattr(config, "qk_head_dim", None) and getattr(config, "qk_nope_head_dim", None):
        _set(config, "qk_head_dim", config.qk_nope_head_dim + config.qk_rope_head_dim)
    _whole_patches(config)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if isinstance(rope, dict) and rope.get("mrope_section"):
        rope["mrope_section"] = _rope_sections(config, rope)
    return config


def _rope_sections(config: Any, rope: Mapping[str, Any]) -> list[int]:
    """Return the pairs of a head's turned elements that time, height and width have."""
    partial = rope.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None)
    pairs = int(HEAD_DIM * (partial or 1.0)) // 2
    side = pairs * 3 // 8
    return [pairs - 2 * side, side, side]


def _whole_patches(config: Any) -> None:
    """Make an image a whole number of patches wide."""
    image, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if (
        isinstance(image, int)
        and isinstance(patch, int)
        and not isinstance(image, bool)
        and patch > 0
        and image % patch
    ):
        _set(config, "image_size", 2 * patch)


def assign(config: Any, values: Mapping[str, Any]) -> None:
    """Set dotted fields of a config, or of its plain dict."""
    for dotted, value in values.items():
        *outer, leaf = dotted.split(".")
        inner = config
        for part in outer:
            inner = inner[part] if isinstance(inner, dict) else getattr(inner, part)
        if isinstance(inner, dict):
            inner[leaf] = value
        else:
            setattr(inner, leaf, value)


def _set(config: Any, name: str, value: Any) -> None:
    """Set a field, unless it is read-only or refuses a value that others still contradict."""
    with suppress(AttributeError, ValueError, TypeError, NotImplementedError):
        setattr(config, name, value)
