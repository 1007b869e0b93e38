"""Names for an SGLang class without a twin:

those of `discover`, told of SGLang's mappings and of the layer that drafts.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from .audit import text_of
from .discover import discover
from .subject import NotRun

KINDS = ("orig_to_new_prefix", "orig_to_new_substr", "orig_to_new_suffix")
MAPPER = "hf_to_vllm_mapper"
"""The attribute by which `discover` knows a mapping of names:

vLLM's. SGLang's classes have one of another name, of the same form.
"""


def found_by_trying(
    make: Callable[[], Any], why: Sequence[str], progress: Callable[[str], None]
) -> dict[str, Tensor]:
    """A checkpoint of names that the class has shown to take.

    Raises:
        NotRun: too few were found; with what the class itself says to an empty checkpoint, where it
            raises, and why a twin would not do.
    """
    model = make()
    for module in [model, *model.children()]:
        if (mapper := getattr(module, "hf_to_sglang_mapper", None)) is not None:
            object.__setattr__(module, MAPPER, mapper)
    _say_drafts(model)
    try:
        return discover(model, progress)
    except NotRun as few:
        raise NotRun("; ".join([str(few), *_raised(make), *why[:1]])) from few


def _raised(make: Callable[[], Any]) -> list[str]:
    try:
        make().load_weights(iter(()))
    except Exception as error:
        return [f"even without weights its load_weights raises {text_of(error)}"]
    return []


def _say_drafts(model: nn.Module) -> None:
    """A layer by which a model drafts for itself goes under the number after the last, whatever the
    class itself calls it.
    """
    config: Any = getattr(model, "config", None)
    layers = getattr(getattr(config, "text_config", None) or config, "num_hidden_layers", None)
    if not isinstance(layers, int) or not getattr(config, "num_nextn_predict_layers", 0):
        return
    given: Any = getattr(model, MAPPER, None)
    rules: dict[str, Mapping[str, str]] = {
        kind: dict(getattr(given, kind, None) or {}) for kind in KINDS
    }
    drafts = {f"model.layers.{layers}.": "model.decoder.", "mtp.layers.0.": "model.layers.0."}
    rules["orig_to_new_prefix"] = {**drafts, **rules["orig_to_new_prefix"]}
    rules["orig_to_new_substr"] = {
        f"model.layers.{layers}.": "model.",
        **rules["orig_to_new_substr"],
    }
    object.__setattr__(model, MAPPER, SimpleNamespace(**rules))
