"""Finds the model that an optimizer trains, and its parts: backbone, head, final norm."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import megatron
from .megatron import ParallelLayout
from .solve import LanguageHead
from .tokenizer import tokenizer_folder

_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "final_norm", "norm_f")
_SPECIAL = re.compile(r"(image|video|audio|vision|pad)\w*_(?:token_)?(?:id|index)$|pad_token_id$")


class Unreadable(Exception):
    """Says why a part of a model cannot be looked at."""


@dataclass(frozen=True)
class FoundModel:
    """A model with a language head, and what its config says of the logits."""

    model: Any
    base: Any
    head: Any
    head_name: str
    cap: float | None
    scale: float
    norm_name: str | None
    norm: Any
    ends: tuple[int, ...]
    specials: dict[str, list[int]]
    layout: ParallelLayout | None = None
    """Megatron-core's spread over ranks; None for every other model."""

    @property
    def hidden(self) -> int:
        """Width of what the head is given."""
        return int(_weight_shape(self.head)[1])


def find_models(owned: Iterable[int]) -> list[FoundModel]:
    """Return the models with a language head that own one of the parameters (by `id`).

    Of models around one head, the largest is taken.
    """
    owned = set(owned)
    found: dict[int, FoundModel] = {}
    sizes: dict[int, tuple[int, int]] = {}
    for candidate in gc.get_objects():
        try:
            if not issubclass(type(candidate), nn.Module):
                continue
            module: Any = candidate
            speaks = hasattr(type(candidate), "get_output_embeddings")
            if not speaks and not megatron.is_there():
                continue
            parameters = list(module.parameters())
            if not any(megatron.is_owned(parameter, owned) for parameter in parameters):
                continue
            head = module.get_output_embeddings() if speaks else None
            layout = None
            if head is None or not _has_weight(head):
                layout = megatron.layout_of(module)
                if layout is None:
                    continue
            key = id(head if layout is None else layout.gpt)
            size = len(parameters), sum(1 for _ in module.modules())
            if sizes.get(key, (-1, -1)) < size:
                found[key] = (
                    describe_model(module, head) if layout is None else describe_gpt(module, layout)
                )
                sizes[key] = size
        except ReferenceError:  # a dead proxy
            continue
        except Exception:  # proxies that raise at any touch, half-built modules: not the model
            continue
    return list(found.values())


def largest_owner(owned: Iterable[int]) -> str | None:
    """Return the name of the largest module's class that owns one of the parameters (by `id`)."""
    owned = set(owned)
    sizes: dict[str, int] = {}
    for candidate in gc.get_objects():
        try:
            if issubclass(type(candidate), nn.Module):
                parameters = list(candidate.parameters())
                if any(id(parameter) in owned for parameter in parameters):
                    size = sum(1 for _ in candidate.modules())
                    name = type(candidate).__name__
                    sizes[name] = max(size, sizes.get(name, 0))
        except Exception:  # proxies that raise at any touch, half-built modules
            continue
    return max(sizes, key=lambda name: sizes[name], default=None)


def _has_weight(head: Any) -> bool:
    return getattr(head, "weight", None) is not None or bool(getattr(head, "modules_to_save", None))


def _weight_shape(head: Any) -> torch.Size:
    saved = getattr(head, "modules_to_save", None)
    inner = saved[next(iter(saved))] if saved is not None and len(saved) else head
    shape: torch.Size = inner.weight.shape
    return shape


def describe_gpt(model: Any, layout: ParallelLayout) -> FoundModel:
    """Return the parts of a model whose language model is Megatron-core's."""
    gpt, config = layout.gpt, getattr(model, "config", None)
    text = megatron.text_of(config)
    name = next((n for n, m in model.named_modules() if m is gpt.output_layer), "output_layer")
    norm = getattr(gpt.decoder, "final_layernorm", None)
    norm_name = next((n for n, m in model.named_modules() if norm is not None and m is norm), None)
    return FoundModel(
        model=model,
        base=gpt.decoder,
        head=megatron.MegatronHead(layout),
        head_name=name,
        cap=None,
        scale=1.0,
        norm_name=norm_name,
        norm=norm,
        ends=_ends(model, text),
        specials=_specials(config, text) if config is not None else {},
        layout=layout,
    )


def _ends(model: Any, text: Any) -> tuple[int, ...]:
    generation = getattr(model, "generation_config", None)
    ends = getattr(generation, "eos_token_id", None)
    if ends is None:
        ends = getattr(text, "eos_token_id", None)
    return tuple(ends) if isinstance(ends, (list, tuple)) else () if ends is None else (ends,)


def describe_model(model: Any, head: Any) -> FoundModel:
    """Find the parts of a model that the watch needs: backbone, head and special tokens."""
    base = _backbone(model, head)
    config = model.config
    text = megatron.text_of(config)
    scale = float(getattr(text, "logit_scale", None) or 1.0)
    scale /= float(getattr(text, "logits_scaling", None) or 1.0)
    if base is getattr(model, "decoder", None) and hasattr(model, "model_dim"):  # T5 and its like
        tied = getattr(config, "tie_word_embeddings", True)
        scale *= model.model_dim**-0.5 if getattr(config, "scale_decoder_outputs", tied) else 1.0
    name = next((n for n, m in model.named_modules() if m is head), type(head).__name__)
    norm_name, norm = _final_norm(base)
    return FoundModel(
        model=model,
        base=base,
        head=head,
        head_name=name,
        cap=getattr(text, "final_logit_softcapping", None) or None,
        scale=scale,
        norm_name=norm_name,
        norm=norm,
        ends=_ends(model, text),
        specials=_specials(config, text),
    )


def _backbone(model: Any, head: Any) -> Any:
    """Return the module that gives the head its hidden states."""
    base = _base(model, head)
    if base is model and getattr(model.config, "is_encoder_decoder", False):
        return getattr(model, "decoder", base)  # T5: encoder and decoder are siblings of the head
    parts = [name for name, _ in base.named_children()]
    if parts == ["decoder"]:  # OPT, BartForCausalLM: what is called is the decoder within
        return base.decoder
    return base


def _base(model: Any, head: Any) -> Any:
    base = model.base_model
    for _ in range(3):  # a wrapper whose base is itself a model with a head
        inner = getattr(base, "base_model", base)
        if inner is base or _head_of(base) is None:
            break
        base = inner
    if _head_of(base) is None:
        return base
    # Vision-language classes of transformers 4 name no base: it is that of the model of text within
    # which the head is, or the sibling of the head that has the embeddings.
    for part in base.modules():
        if part is not base and _head_of(part) is head and part.base_model is not part:
            return part.base_model
    embeddings = base.get_input_embeddings()
    for part in base.children():
        if hasattr(part, "get_input_embeddings") and any(m is embeddings for m in part.modules()):
            return part
    return base


def _head_of(module: Any) -> Any:
    return getattr(module, "get_output_embeddings", lambda: None)()


def _final_norm(base: Any) -> tuple[str | None, Any]:
    ends = [
        (name, module)
        for name, module in base.named_modules()
        if name.split(".")[-1] in _NORMS
        and isinstance(getattr(module, "weight", None), Tensor)
        and not re.search(r"vis|audio|encoder|tower|layers\.|\.h\.|blocks\.", name)
    ]
    return ends[-1] if ends else (None, None)


def _specials(*configs: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for config in configs:
        for key, value in vars(config).items():
            if isinstance(value, int) and not isinstance(value, bool) and _SPECIAL.search(key):
                name = re.sub(r"_(token_)?(id|index)$", "", key)
                if value >= 0 and value not in found.get(name, []):
                    found.setdefault(name, []).append(value)
    return found


def is_recorded() -> bool:
    """Return whether what is computed now is recorded in a CUDA graph: then nothing may be read."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def holds_shards(module: Any) -> bool:
    """Return whether a process holds parts of weights: DTensors, ZeRO-3's, or FSDP1's."""
    parameters = list(module.parameters())
    if any(hasattr(p, "full_tensor") or hasattr(p, "ds_tensor") for p in parameters):
        return True
    flat = [p for p in parameters if getattr(p, "_fsdp_flattened", False)]
    return bool(flat) and all(p.dim() == 1 for p in flat)  # whole ones keep their shape


def is_view_of_fsdp1(found: FoundModel) -> bool:
    """Return whether the head's weight is a view of FSDP1's flat one, which has the gradient."""
    weight = getattr(found.head, "weight", None)
    managed = getattr(found.head, "_is_fsdp_managed_module", False)
    return managed and isinstance(weight, Tensor) and not isinstance(weight, nn.Parameter)


def is_in_pieces_of_fsdp1(found: FoundModel) -> bool:
    """Return whether FSDP1 holds the head in pieces, or hides where its gradient is."""
    flat = getattr(getattr(found.head, "weight", None), "_fsdp_flattened", False)
    return is_view_of_fsdp1(found) or (flat and holds_shards(found.model))


def unshard(tensor: Any) -> Any:
    """Return a tensor without its shards: a collective where it has some."""
    if not hasattr(tensor, "full_tensor"):
        return tensor.detach()
    with torch.no_grad():
        return tensor.full_tensor().detach()


def local_shard(tensor: Tensor) -> Tensor:
    """Return this process's own part of a tensor, detached."""
    detached: Any = tensor.detach()
    found: Tensor = detached.to_local() if hasattr(detached, "to_local") else detached
    return found


def head_tensors(found: FoundModel) -> list[Tensor]:
    """Return the tensors that the head is made of: weight, and bias if it has one.

    Raises:
        Unreadable: they are not a matrix that can be read.
    """
    head = found.head
    if found.layout is not None:
        return [found.layout.local_head()]
    saved = getattr(head, "modules_to_save", None)
    if saved is not None and len(saved):
        names = [n for n in getattr(head, "active_adapters", ()) if n in saved] or list(saved)
        head = saved[names[0]]
    if hasattr(head, "get_delta_weight") and not getattr(head, "merged", False):
        raise Unreadable("an adapter is on the head itself")
    weight = getattr(head, "weight", None)
    if weight is None or weight.dim() != 2 or not weight.is_floating_point():
        how = "no weight" if weight is None else f"{weight.dtype}, {weight.dim()} dimensions"
        raise Unreadable(
            f"the head's weight is not a matrix of numbers here ({how}): quantized,"
            " or kept in pieces by FSDP1 or ZeRO-3"
        )
    bias = getattr(head, "bias", None)
    return [weight] if bias is None else [weight, bias]


def as_head(found: FoundModel, tensors: list[Tensor]) -> LanguageHead:
    """Build the head to solve with from its whole tensors: weight, and bias if it has one."""
    return LanguageHead(
        tensors[0], tensors[1] if len(tensors) > 1 else None, found.scale, found.cap
    )


def mesh_of(tensors: Iterable[Any]) -> dict[str, int] | None:
    """Return the mesh of the first DTensor among some, as {dimension: size}."""
    for tensor in tensors:
        mesh = getattr(tensor, "device_mesh", None)
        if mesh is not None:
            names = mesh.mesh_dim_names or tuple(str(k) for k in range(mesh.ndim))
            return {str(n): int(mesh.size(k)) for k, n in enumerate(names)}
    return None


def model_facts(
    found: FoundModel, optimizer: Any, owned: set[int], seconds: float, shared_out: bool
) -> dict[str, Any]:
    """Return the fields of `model`; `shared_out`: the optimizer has shares of parameters."""
    model, config = found.model, getattr(found.model, "config", None)
    named = list(model.named_parameters())
    lost = [
        n
        for n, p in named
        if p.requires_grad and not shared_out and not megatron.is_owned(p, owned)
    ]
    shape = _weight_shape(found.head)
    mesh = mesh_of(p for _, p in named) if found.layout is None else found.layout.sizes
    vocabulary = int(shape[0]) if found.layout is None else found.layout.rows(int(shape[0]))
    return {
        "class": type(model).__name__,
        "model_type": getattr(config, "model_type", None),
        "name_or_path": getattr(config, "_name_or_path", None) or None,
        "tokenizer": tokenizer_folder(),
        "optimizer": type(optimizer).__name__,
        "dtype": str(named[0][1].dtype),
        "parameters": len(named),
        "trainable": sum(p.requires_grad for _, p in named),
        "in_no_group": lost[:20],
        "n_in_no_group": len(lost),
        "head": found.head_name,
        "vocabulary": vocabulary,
        "hidden": int(shape[-1]),
        "tied": _is_tied(found),
        "tie_meant": _is_tie_meant(found),
        "cap": found.cap,
        "scale": found.scale,
        "ends": list(found.ends),
        "begins": _begins(found),
        "specials": found.specials,
        "norm": found.norm_name,
        "sharded": shared_out if found.layout is not None else holds_shards(found.model),
        "mesh": mesh,
        "adapters": bool(getattr(model, "peft_config", None))
        or any(type(m).__module__.startswith("peft.") for m in model.modules()),
        "compiled": is_compiled(found),
        "seconds_to_find": round(seconds, 3),
    }


def _begins(found: FoundModel) -> list[int]:
    """Return the ids with which a text begins, by the config."""
    config = getattr(found.model, "config", None)
    begin = getattr(megatron.text_of(config), "bos_token_id", None) if config is not None else None
    return [begin] if isinstance(begin, int) else []


def _is_tied(found: FoundModel) -> bool:
    if found.layout is not None:
        return bool(getattr(found.layout.gpt, "share_embeddings_and_output_weights", False))
    embedding = found.model.get_input_embeddings()
    return getattr(embedding, "weight", None) is getattr(found.head, "weight", 0)


def _is_tie_meant(found: FoundModel) -> bool | None:
    """Return whether the config ties the head; None where it, or the class, does not say so.

    None also where the text model's config says otherwise, and where neither the head nor the
    embeddings are trained: two copies stay the same.
    """
    config: Any = getattr(found.model, "config", None)
    names: Any = getattr(found.model, "_tied_weights_keys", None) or ()
    meant = getattr(config, "tie_word_embeddings", None)
    # transformers 4 asks the text model's config, and 5 the whole one's
    whole = getattr(config, "get_text_config", None)
    text = whole(decoder=True) if callable(whole) else config
    settings = {meant, getattr(text, "tie_word_embeddings", meant)}
    if found.layout is not None or settings not in ({True}, {False}):
        return None
    embedding = found.model.get_input_embeddings()
    pair = (getattr(module, "weight", None) for module in (embedding, found.head))
    if not any(getattr(weight, "requires_grad", True) for weight in pair):
        return None
    can = any(str(name).startswith(f"{found.head_name}.") for name in names)
    return False if settings == {False} else can or None


def is_compiled(found: FoundModel) -> bool:
    """Return whether the model or its backbone is compiled as a whole."""
    return any(
        getattr(m, "_compiled_call_impl", None) is not None for m in (found.model, found.base)
    )


def has_dropout(base: Any) -> bool:
    """Return whether a module has dropout that acts where it is in training mode."""
    if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in base.modules()):
        return True
    return any(
        isinstance(value := getattr(m, "attention_dropout", None), float) and value > 0
        for m in base.modules()
    )
