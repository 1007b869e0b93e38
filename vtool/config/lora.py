"""Which linear layers get an adapter: by their names alone, for the rules and for the model itself. Torch-free."""

from collections.abc import Iterable, Mapping

from vtool.config.schema import Freeze, Lora

_GATED = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def _qwen(tower: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {
        "vision": tuple(f"model.visual.blocks.N.{name}" for name in ("attn.qkv", "attn.proj", *tower)),
        "projector": ("model.visual.merger.mlp.0", "model.visual.merger.mlp.2"),
        "language": tuple(f"model.language_model.layers.N.{name}" for name in (*(f"self_attn.{part}_proj" for part in "qkvo"), *_GATED)),
    }


LINEAR: Mapping[str, Mapping[str, tuple[str, ...]]] = {"qwen2_vl": _qwen(("mlp.fc1", "mlp.fc2")), "qwen2_5_vl": _qwen(_GATED)}
"""The linear layers of each family by part, as transformers names them, without the head; N is the number of a layer."""


def chosen(names: Iterable[str], lora: Lora) -> list[str]:
    """Of names of linear layers, those that `lora.targets` names and `lora.exclude` does not."""
    return [
        name
        for name in names
        if (lora.targets is None or any(names_it(target, name) for target in lora.targets))
        and not any(names_it(excluded, name) for excluded in lora.exclude)
    ]


def names_it(end: str, name: str) -> bool:
    """Whether a name of `LINEAR`, or of a model, ends in what was written. Where it has N, any number will do."""
    asked, parts = end.split("."), name.split(".")
    pairs = zip(reversed(asked), reversed(parts), strict=False)
    return len(asked) <= len(parts) and all(ask == part or (part == "N" and ask.isdigit()) for ask, part in pairs)


def trained_parts(freeze: Freeze) -> list[str]:
    """The parts that are not frozen."""
    return [part for part, frozen in freeze.model_dump().items() if not frozen]
