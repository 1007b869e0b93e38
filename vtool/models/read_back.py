"""What a live model of transformers has of the settings `model`;

what adapters of peft have of `lora`.
"""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vtool.config.readback import Observed
from vtool.families import FAMILIES
from vtool.models.attention import BY_DOCUMENT, BY_ROW
from vtool.models.modeling import class_of

# What the table of sizes has, by the names of transformers' configs; not every family has all of
# it.
_TEXT = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "positions": "max_position_embeddings",
}
_VISION = {
    "vision_depth": "depth",
    "vision_hidden": "hidden_size",
    "vision_intermediate": "intermediate_size",
    "vision_heads": "num_heads",
}
# what each attention of transformers looks its function up by, in every forward pass
_ATTENTION = "_attn_implementation"


def read_back(module: nn.Module) -> Iterator[Observed]:
    """Which attention its layers call, and whether they compute their activations again.

    Of all layers, each kind once.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = list(module.modules())
    attentions = [
        layer
        for layer in layers
        if "Attention" in type(layer).__name__
        and hasattr(getattr(layer, "config", None), _ATTENTION)
    ]
    text = getattr(getattr(module, "config", None), "get_text_config", lambda: None)()
    # A tower on its own, as an engine may have it, takes its own config for that of text; but its
    # tokens see each other both ways.
    packs = [layer.config is text and getattr(layer, "is_causal", True) for layer in attentions]
    kinds = [(type(layer).__name__, getattr(layer.config, _ATTENTION)) for layer in attentions]
    for (name, value), packable in dict.fromkeys(zip(kinds, packs, strict=True)):
        by_document = value == BY_DOCUMENT
        yield Observed("model.attention", "sdpa" if value in (BY_DOCUMENT, BY_ROW) else value, name)
        # one that does not look at documents would have them see each other, without a word
        if packable:
            yield Observed("data.packing", "token_budget" if by_document else "none", name)
    recomputing = [layer for layer in layers if isinstance(layer, GradientCheckpointingLayer)]
    for name, on in dict.fromkeys(
        (type(layer).__name__, bool(layer.gradient_checkpointing)) for layer in recomputing
    ):
        yield Observed("model.gradient_checkpointing", on, name)
    if not recomputing:
        yield Observed(
            "model.gradient_checkpointing",
            False,
            f"{type(module).__name__}, of which no layer can do it,",
        )


def read_config(config: Any) -> Iterator[Observed]:
    """Its family, and its size, where it is one of ours."""
    yield Observed("model.family", config.model_type, "the model's config")
    text, vision = config.get_text_config(), config.vision_config
    measured = {name: getattr(text, attribute, None) for name, attribute in _TEXT.items()}
    measured |= {name: getattr(vision, attribute, None) for name, attribute in _VISION.items()}
    # where hidden_size is what comes out of the tower
    measured["vision_hidden"] = getattr(vision, "embed_dim", measured["vision_hidden"])
    there = {name: value for name, value in measured.items() if value is not None}
    facts = FAMILIES.get(config.model_type)
    size = next(
        (
            size
            for size, table in (facts.sizes if facts else {}).items()
            if all(table.get(name, value) == value for name, value in there.items())
        ),
        None,
    )
    yield Observed("model.size", size or f"another size ({there})", "the model's config")


def read_class(module: nn.Module) -> Iterator[Observed]:
    """The file and the class that it was built of."""
    built = class_of(module)
    yield Observed(
        "model.modeling", f"{Path(inspect.getfile(built)).resolve()}:{built.__name__}", "the model"
    )


def read_adapters(
    module: Any, part: Callable[[str], str] | None = None, prefix: str = ""
) -> Iterator[Observed]:
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
        elif (
            isinstance(layer, nn.Linear)
            and layer is not output
            and not name.endswith(".base_layer")
            and ".lora_" not in name
        ):
            yield Observed("lora.layers", "no adapter", name, of)


def _adapter(name: str, layer: Any, of: tuple[str, ...]) -> Iterator[Observed]:
    for adapter, a in layer.lora_A.items():
        rank, dropout = a.weight.shape[0], layer.lora_dropout[adapter]
        yield Observed("lora.layers", "an adapter", name, of)
        yield Observed("lora.rank", rank, f"A of {name}")
        yield Observed("lora.alpha", layer.scaling[adapter] * rank, f"the scaling of {name}")
        yield Observed(
            "lora.dropout",
            dropout.p if isinstance(dropout, nn.Dropout) else 0.0,
            f"the adapter of {name}",
        )


def dtype_name(dtype: torch.dtype) -> str:
    """As a recipe writes it."""
    return str(dtype).removeprefix("torch.")
