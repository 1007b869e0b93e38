"""A small Qwen2.5-VL with weights that matter everywhere, and a batch with images."""

from typing import Any

import torch
from torch import Tensor, nn

from vtool.engines.megatron.gathering import WEIGHT, Spread, gather, over_stages
from vtool.engines.megatron.gpt_model import build_gpt, text_shape, transformer_fields
from vtool.engines.megatron.groups import Groups
from vtool.engines.megatron.language_model import replace_language
from vtool.engines.megatron.pipeline import Stage
from vtool.engines.megatron.weights import LanguageWeights, name_in_model, tensor_parallel_share

IMAGE = 151


def tiny_model(
    *,
    tied: bool,
    vocabulary: int = 160,
    dtype: torch.dtype = torch.float32,
    family: str = "qwen2_5_vl",
) -> Any:
    """Four layers, four heads over two key heads; biases and norms are random too."""
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
    )

    text = {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.1,
        "tie_word_embeddings": tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
    }
    vision = {"depth": 2, "num_heads": 2, "initializer_range": 0.1}
    if family == "qwen2_vl":
        config, model_class = Qwen2VLConfig, Qwen2VLForConditionalGeneration
        vision |= {"embed_dim": 32, "mlp_ratio": 2, "hidden_size": 64}
    else:
        config, model_class = Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
        vision |= {
            "hidden_size": 32,
            "intermediate_size": 64,
            "out_hidden_size": 64,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        }
    ids = {
        "image_token_id": IMAGE,
        "video_token_id": 152,
        "vision_start_token_id": 153,
        "vision_end_token_id": 154,
    }
    torch.manual_seed(0)
    model = model_class(
        config(text_config=text, vision_config=vision, tie_word_embeddings=tied, **ids)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.normal_(0, 0.3)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model.to(dtype).eval()


def tiny_batch(*, left: bool = False) -> dict[str, Tensor]:
    """Two rows of 21 tokens with an image each, of 6 and of 4 tokens;

    the second row has 5 tokens of padding.
    """
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, 150, (2, 21), generator=generator)
    mask = torch.ones_like(ids)
    hole = slice(0, 5) if left else slice(16, None)
    ids[1, hole], mask[1, hole] = 0, 0
    ids[0, 2:10] = torch.tensor([153, *[IMAGE] * 6, 154])
    ids[1, 6:12] = torch.tensor([153, *[IMAGE] * 4, 154])
    grid = torch.tensor([[1, 4, 6], [1, 4, 4]])
    pixels = torch.randn(int(grid.prod(-1).sum()), 3 * 2 * 14 * 14, generator=generator)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "mm_token_type_ids": (ids == IMAGE).long(),
        "pixel_values": pixels,
        "image_grid_thw": grid,
    }


def with_megatron(
    model: nn.Module, groups: Groups, *, sequence: bool = False, **settings: Any
) -> Any:
    """Return the model with its language part, and the weights of that, in megatron-core.

    `settings`: of its `TransformerConfig`.
    """
    text = model.config.get_text_config()
    whole = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    parallel = {
        "tensor_model_parallel_size": groups.tensor_size,
        "pipeline_model_parallel_size": groups.stages.world,
        "sequence_parallel": sequence,
    }
    device = groups.data.device
    gpt = build_gpt(
        text,
        transformer_fields(text, next(model.parameters()).dtype, device, parallel | settings),
        device,
    )
    with torch.no_grad():
        for name, parameter in gpt.named_parameters():
            parameter.copy_(
                tensor_parallel_share(
                    in_model(gpt, name),
                    whole,
                    text_shape(text),
                    groups.tensor_size,
                    groups.tensor_rank,
                )
            )
    replace_language(model, gpt, Stage(groups.stages))
    return model


def whole_weights(model: Any, groups: Groups) -> dict[str, Tensor]:
    """The language part's weights by transformers' names, from all ranks."""
    gpt = model.model.language_model.gpt
    shape = text_shape(model.config.get_text_config())
    weights = LanguageWeights.of(gpt, shape, groups.tensor_rank)
    parameters = dict(gpt.named_parameters())
    mine = [
        Spread(
            *(name, WEIGHT, weights, parameter.shape, parameter.dtype, None),
            groups.tensor_size if weights.is_cut(name) else 1,
            groups.stages.rank,
        )
        for name, parameter in parameters.items()
    ]
    found: dict[str, Tensor] = {}
    for spread in over_stages(mine, groups):
        found |= gather(spread, lambda name, _: parameters[name], groups, None) or {}
    return found


def in_model(gpt: Any, name: str) -> str:
    return name_in_model(
        name, gpt.decoder.layers[0].layer_number - 1, tied=gpt.share_embeddings_and_output_weights
    )
