"""Which linear layers get an adapter:

by their names alone, for the rules and for the model itself. Torch-free.
"""

from collections.abc import Iterable, Mapping

from vtool.config.schema import Freeze, Lora

_ATTENTION = tuple(f"self_attn.{part}_proj" for part in "qkvo")
_GATED = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_QWEN3_TOWER = ("mlp.linear_fc1", "mlp.linear_fc2")
_QWEN3_MERGER = ("merger.linear_fc1", "merger.linear_fc2")


def _linear(
    tower: tuple[str, ...], projector: tuple[str, ...], language: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    return {
        "vision": tuple(
            f"model.visual.blocks.N.{name}" for name in ("attn.qkv", "attn.proj", *tower)
        ),
        "projector": tuple(f"model.visual.{name}" for name in projector),
        "language": tuple(f"model.language_model.layers.N.{name}" for name in language),
    }


LINEAR: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "qwen2_vl": _linear(
        ("mlp.fc1", "mlp.fc2"), ("merger.mlp.0", "merger.mlp.2"), (*_ATTENTION, *_GATED)
    ),
    "qwen2_5_vl": _linear(_GATED, ("merger.mlp.0", "merger.mlp.2"), (*_ATTENTION, *_GATED)),
    "qwen3_vl": _linear(
        _QWEN3_TOWER,
        (
            *_QWEN3_MERGER,
            "deepstack_merger_list.N.linear_fc1",
            "deepstack_merger_list.N.linear_fc2",
        ),
        (*_ATTENTION, *_GATED),
    ),
    "qwen3_5": _linear(
        _QWEN3_TOWER,
        _QWEN3_MERGER,
        (
            *(
                f"linear_attn.{name}"
                for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
            ),
            *_ATTENTION,
            *_GATED,
        ),
    ),
    "glm4v": _linear(
        _GATED,
        ("merger.proj", "merger.gate_proj", "merger.up_proj", "merger.down_proj"),
        (*_ATTENTION, "mlp.gate_up_proj", "mlp.down_proj"),
    ),
}
"""The linear layers of each family by part, as transformers names them, without the head;

N is the number of a layer.
"""


def chosen(names: Iterable[str], lora: Lora) -> list[str]:
    """Of names of linear layers, those that `lora.targets` names and `lora.exclude` does not."""
    return [
        name
        for name in names
        if (lora.targets is None or any(names_it(target, name) for target in lora.targets))
        and not any(names_it(excluded, name) for excluded in lora.exclude)
    ]


def names_it(end: str, name: str) -> bool:
    """Whether a name of `LINEAR`, or of a model, ends in what was written.

    Where it has N, any number will do.
    """
    asked, parts = end.split("."), name.split(".")
    pairs = zip(reversed(asked), reversed(parts), strict=False)
    return len(asked) <= len(parts) and all(
        ask == part or (part == "N" and ask.isdigit()) for ask, part in pairs
    )


def trained_parts(freeze: Freeze) -> list[str]:
    """The parts that are not frozen."""
    return [part for part, frozen in freeze.model_dump().items() if not frozen]
