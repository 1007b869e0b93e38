"""Observe what a live model of transformers has of the settings `model`, and peft's of `lora`."""

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vtool.config.expected import AGAIN, CHECKPOINTING, COMPONENTS, KEPT
from vtool.config.readback import Observed
from vtool.families import can_train, family_facts
from vtool.models.attention import LANGUAGE_ATTENTION, TOWER_ATTENTION
from vtool.models.model_class import class_of
from vtool.models.nf4 import Nf4Linear

# The entries of a size, by the names of transformers' configs; not every family has all of them.
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
_WHOLE = {True: "a copy that is trained whole", False: "none"}
_ATTENTION = "_attn_implementation"


def observe_layers(module: nn.Module) -> Iterator[Observed]:
    """Yield which attention each kind of layer calls, and which blocks recompute activations."""
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
    kinds = [
        (
            type(layer).__name__,
            getattr(layer.config, _ATTENTION),
            layer.config is text and getattr(layer, "is_causal", True),
        )
        for layer in attentions
    ]
    kind = getattr(getattr(module, "config", None), "model_type", None)
    learnt = can_train(kind) and family_facts(str(kind)).is_learnt
    for name, value, packable in dict.fromkeys(kinds):
        ours = LANGUAGE_ATTENTION.get(value) or TOWER_ATTENTION.get(value)
        yield Observed("model.attention", value if ours is None else ours.kernel, name)
        # one that ignores documents would silently have them see each other; of a type without code
        # here it is transformers' masks that go by positions
        if packable and not learnt:
            packing = "token_budget" if ours is not None and ours.packed else "none"
            yield Observed("data.packing", packing, name)
    blocks = [
        (name, layer)
        for name, layer in module.named_modules()
        if isinstance(layer, GradientCheckpointingLayer)
    ]
    blocks.sort(key=lambda one: "visual." not in one[0])  # which is computed first
    for place, (_, layer) in enumerate(blocks):
        where = f"{type(layer).__name__}, block {place + 1} of {len(blocks)},"
        yield observe_recomputing(place, where, on=bool(layer.gradient_checkpointing))
    if not blocks:
        where = f"{type(module).__name__}, of which no layer can do it,"
        yield observe_recomputing(0, where, on=False)


def observe_recomputing(place: int, where: str, *, on: bool) -> Observed:
    """Return whether a block computes its activations again.

    Args:
        place: of the block, from 0, in the order of computation.
        where: the block, for people.
    """
    return Observed(CHECKPOINTING, AGAIN if on else KEPT, where, (place,))


def observe_config(config: Any) -> Iterator[Observed]:
    """Yield the family of a model's config, and its size, where it is one of vtool's."""
    yield Observed("model.family", config.model_type, "the model's config")
    found = measure_config(config)
    facts = family_facts(config.model_type)
    sizes = (
        size
        for size, table in facts.sizes.items()
        if all(table.get(name, value) == value for name, value in found.items())
    )
    size = next(sizes, f"another size ({found})")
    yield Observed("model.size", size, "the model's config")


def measure_config(config: Any) -> dict[str, int]:
    """Return the entries of a size that a model's config has."""
    text, vision = config.get_text_config(), config.vision_config
    measured = {name: getattr(text, attribute, None) for name, attribute in _TEXT.items()}
    measured |= {name: getattr(vision, attribute, None) for name, attribute in _VISION.items()}
    # where hidden_size is what comes out of the tower
    measured["vision_hidden"] = getattr(vision, "embed_dim", measured["vision_hidden"])
    return {name: value for name, value in measured.items() if value is not None}


def observe_class(module: nn.Module) -> Iterator[Observed]:
    """Yield the file and the class that a model was built of."""
    built = class_of(module)
    file = Path(inspect.getfile(built)).resolve()
    yield Observed("model.modeling", f"{file}:{built.__name__}", "the model")


def observe_adapters(
    module: Any, component: Callable[[str], str] | None = None, prefix: str = ""
) -> Iterator[Observed]:
    """Yield, of each linear layer but the head, whether it has an adapter of peft, and which.

    Args:
        module: a model, or a module of one.
        component: returns the component of a layer by its name.
        prefix: what stands before the module's names in the whole model.
    """
    # where peft was not imported, which takes seconds, no layer is of its class
    wrapper = getattr(sys.modules.get("peft.utils"), "ModulesToSaveWrapper", ())
    head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    copies: list[str] = []
    for stem, layer in module.named_modules():
        name = prefix + stem
        of = (name, component(name)) if component else (name,)
        if any(stem.startswith(copied) for copied in copies):
            continue
        if isinstance(layer, wrapper):
            copies.append(f"{stem}.")
            yield Observed("lora.whole", _WHOLE[True], name, of)
            continue
        if isinstance(layer, nn.Linear | nn.Embedding) and ".lora_" not in name:
            yield Observed("lora.whole", _WHOLE[False], name, of)
        if hasattr(layer, "lora_A"):
            yield from _adapter(name, layer, of)
        elif (
            isinstance(layer, nn.Linear)
            and layer is not head
            and not name.endswith(".base_layer")
            and ".lora_" not in name
        ):
            yield Observed("lora.layers", "no adapter", name, of)
            if not layer.weight.requires_grad:
                yield Observed("lora.base_dtype", base_dtype(layer), name, of)


def _adapter(name: str, layer: Any, of: tuple[str, ...]) -> Iterator[Observed]:
    for adapter, a in layer.lora_A.items():
        rank, dropout = a.weight.shape[0], layer.lora_dropout[adapter]
        probability = dropout.p if isinstance(dropout, nn.Dropout) else 0.0
        yield Observed("lora.layers", "an adapter", name, of)
        yield Observed("lora.rank", rank, f"A of {name}")
        if (base := getattr(layer, "base_layer", None)) is not None:
            where = f"the layer beneath {name}"
            yield Observed("lora.base_dtype", base_dtype(base), where, of)
        yield Observed("lora.alpha", layer.scaling[adapter] * rank, f"the scaling of {name}")
        if rank > 1 and adapter in getattr(layer, "lora_alpha", {}):
            stabilized = layer.scaling[adapter] * math.sqrt(rank)
            is_so = math.isclose(stabilized, layer.lora_alpha[adapter], rel_tol=1e-6)
            yield Observed("lora.rslora", is_so, f"the scaling of {name}")
        yield Observed(
            "lora.dora", adapter in layer.lora_magnitude_vector, f"the adapter of {name}"
        )
        yield Observed("lora.dropout", probability, f"the adapter of {name}")


def base_dtype(layer: Any) -> str:
    """Return the dtype of a layer's weight, or the type in which it is packed.

    A layer of bitsandbytes' own says that of its weight.
    """
    if isinstance(layer, Nf4Linear) and layer.packed:
        return "nf4"
    return str(getattr(layer.weight, "quant_type", None) or dtype_name(layer.weight.dtype))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name by which a recipe writes a dtype."""
    return str(dtype).removeprefix("torch.")


def observe_frozen(
    parameters: Iterable[tuple[str, nn.Parameter]], component: Callable[[str], str]
) -> Iterator[Observed]:
    """Yield each part of the model as frozen, as trained, or, where it is partly both, as each.

    A rank may have nothing of a part.

    Args:
        parameters: with their names.
        component: returns the part that a parameter is of, by its name.
    """
    trained: dict[str, list[tuple[str, bool]]] = {part: [] for part in COMPONENTS}
    for name, parameter in parameters:
        trained[component(name)].append((name, parameter.requires_grad))
    for part, found in trained.items():
        for frozen in (True, False):
            names = [name for name, on in found if on is not frozen]
            if names:
                more = f" and {len(names) - 1} others" if len(names) > 1 else ""
                yield Observed(f"model.freeze.{part}", frozen, f"{names[0]}{more}")
