"""Names for an SGLang class without a twin: `discover`, with SGLang's mappings of names."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from .discover import MAPPER, MAPPING_KINDS, discover
from .errors import NotRun, error_text
from .twin import load_error


def discover_names(
    make: Callable[[], Any],
    why: Sequence[str],
    progress: Callable[[str], None],
    run: Callable[[Callable[[], Any]], Any],
) -> dict[str, Tensor]:
    """Return a checkpoint of names that the class has shown to take.

    Args:
        why: why no twin would do.
        run: runs a load, and runs it again with a field of the config that it asked for.

    Raises:
        NotRun: too few were found; with what the class itself raises for an empty checkpoint, and
            why a twin would not do.
    """
    model = make()
    for module in [model, *model.children()]:
        if (mapper := getattr(module, "hf_to_sglang_mapper", None)) is not None:
            object.__setattr__(module, MAPPER, mapper)
    _map_draft_layer(model)
    try:
        found = discover(model, progress, run)
    except NotRun as few:
        raise NotRun("; ".join([str(few), *_raised(make), *why[:1]])) from few
    load_error(make, found, run)  # of all at once: it may ask for more fields
    return found


def _raised(make: Callable[[], Any]) -> list[str]:
    try:
        make().load_weights(iter(()))
    except Exception as error:
        return [f"even without weights its load_weights raises {error_text(error)}"]
    return []


def _map_draft_layer(model: nn.Module) -> None:
    """Map a layer that drafts to the number after the last, whatever the class itself calls it."""
    config: Any = getattr(model, "config", None)
    layers = getattr(getattr(config, "text_config", None) or config, "num_hidden_layers", None)
    if not isinstance(layers, int) or not getattr(config, "num_nextn_predict_layers", 0):
        return
    given: Any = getattr(model, MAPPER, None)
    rules: dict[str, Mapping[str, str]] = {
        kind: dict(getattr(given, kind, None) or {}) for kind in MAPPING_KINDS
    }
    draft = f"model.layers.{layers}."
    prefixes = {draft: "model.decoder.", "mtp.layers.0.": "model.layers.0."}
    rules["orig_to_new_prefix"] = {**prefixes, **rules["orig_to_new_prefix"]}
    rules["orig_to_new_substr"] = {
        draft: "model.",
        f"layers.{layers}.": "mtp_block.",
        **rules["orig_to_new_substr"],
    }
    object.__setattr__(model, MAPPER, SimpleNamespace(**rules))
