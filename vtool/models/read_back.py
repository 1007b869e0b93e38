"""What a live model of transformers has of the settings `model`; what adapters of peft have of `lora`."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from vtool.config.read_back import Seen
from vtool.models.sizes import SIZES

_ATTENTION = "_attn_implementation"  # what each attention of transformers looks its function up by, in every forward pass


def read_back(module: nn.Module) -> Iterator[Seen]:
    """Which attention its layers call, and whether they compute their activations again. Of all layers, each kind once."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = list(module.modules())
    attentions = [layer for layer in layers if "Attention" in type(layer).__name__ and hasattr(getattr(layer, "config", None), _ATTENTION)]
    for name, value in dict.fromkeys((type(layer).__name__, getattr(layer.config, _ATTENTION)) for layer in attentions):
        yield Seen("model.attention", value, name)
    recomputing = [layer for layer in layers if isinstance(layer, GradientCheckpointingLayer)]
    for name, on in dict.fromkeys((type(layer).__name__, bool(layer.gradient_checkpointing)) for layer in recomputing):
        yield Seen("model.gradient_checkpointing", on, name)
    if not recomputing:
        yield Seen("model.gradient_checkpointing", False, f"{type(module).__name__}, of which no layer can do it,")


def read_config(config: Any) -> Iterator[Seen]:
    """Its family, and its size, where it is one of ours."""
    family, text, vision = config.model_type, config.get_text_config(), config.vision_config
    yield Seen("model.family", family, "the model's config")
    measured = {
        "hidden": text.hidden_size,
        "intermediate": text.intermediate_size,
        "layers": text.num_hidden_layers,
        "heads": text.num_attention_heads,
        "kv_heads": text.num_key_value_heads,
        "positions": text.max_position_embeddings,
        "vision_depth": vision.depth,
        "vision_hidden": vision.hidden_size,
        "vision_intermediate": vision.intermediate_size,
        "vision_heads": vision.num_heads,
    }
    size = next((name for name, table in SIZES[family].items() if table == measured), f"another size ({measured})")
    yield Seen("model.size", size, "the model's config")


def read_adapters(module: Any, part: Callable[[str], str] | None = None, prefix: str = "") -> Iterator[Seen]:
    """Each linear layer but the head, with an adapter of peft or without, and what its adapter is.

    Args:
        part: which of `model.freeze` a layer is of, by its name.
        prefix: what stands before its names in the whole model.
    """
    output = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    for stem, layer in module.named_modules():
        name = prefix + stem
        of = (name, part(name)) if part else (name,)
        if hasattr(layer, "lora_A"):
            yield from _adapter(name, layer, of)
        elif isinstance(layer, nn.Linear) and layer is not output and not name.endswith(".base_layer") and ".lora_" not in name:
            yield Seen("lora.layers", "no adapter", name, of)


def _adapter(name: str, layer: Any, of: tuple[str, ...]) -> Iterator[Seen]:
    for adapter, a in layer.lora_A.items():
        rank, dropout = a.weight.shape[0], layer.lora_dropout[adapter]
        yield Seen("lora.layers", "an adapter", name, of)
        yield Seen("lora.rank", rank, f"A of {name}")
        yield Seen("lora.alpha", layer.scaling[adapter] * rank, f"the scaling of {name}")
        yield Seen("lora.dropout", dropout.p if isinstance(dropout, nn.Dropout) else 0.0, f"the adapter of {name}")


def dtype_name(dtype: torch.dtype) -> str:
    """As a recipe writes it."""
    return str(dtype).removeprefix("torch.")
