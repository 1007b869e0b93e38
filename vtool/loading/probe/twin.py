"""Tiny twins:

a transformers class, shrunk, with random values, saved and read back under the names that files
have.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .shrink import LAYERS, assign, shrink

TABLE: Mapping[str, Any] = json.loads((Path(__file__).parent / "twins.json").read_text())
"""What no general rule gives, for the class of a name: see `vtool/loading/probe/twins.json`."""


def warm() -> None:
    """Build, before any fork, the table of renamings that transformers otherwise builds whenever a
    process saves its first model.
    """
    with suppress(ImportError, AttributeError):  # younger than the oldest version that is looked at
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        get_checkpoint_conversion_mapping("llama")


def entry(name: str) -> dict[str, Any]:
    """What the table says of a class; `as` takes over what it says of another."""
    found = dict(TABLE["classes"].get(name, {}))
    return {**entry(found.pop("as")), **found} if "as" in found else found


def tiny_config(config_class: Any, said: Mapping[str, Any]) -> Any:
    """A shrunk config of a class of configs."""
    made = config_class(**said.get("config", {}))
    shrink(made, said.get("layers", LAYERS))
    assign(made, said.get("set", {}))
    try:
        return type(made).from_dict(_without_exceptions(made.to_dict()))
    except (ValueError, TypeError, AttributeError):
        return made  # a class that does not read back what it has written


def _without_exceptions(values: Any) -> Any:
    """Without what single layers have of their own:

    it names layers that are no longer there, and follows from the others.
    """
    if isinstance(values, dict):
        return {
            key: _without_exceptions(value)
            for key, value in values.items()
            if key != "per_layer_config"
        }
    return values


def save_twin(
    class_name: str, said: Mapping[str, Any], folder: Path, architecture: str
) -> dict[str, Tensor]:
    """Build the tiny model, save it into `folder`, and give its tensors as the files have them,
    with other, distinct values.
    """
    import transformers
    from safetensors.torch import load_file

    model_class = getattr(transformers, class_name)
    config = tiny_config(model_class.config_class, said)
    torch.manual_seed(0)
    with _no_random_values():
        model = model_class(config)
    kept = [
        *(getattr(model, "_keep_in_fp32_modules", None) or ()),
        *(getattr(model, "_keep_in_fp32_modules_strict", None) or ()),
    ]
    model.to(torch.bfloat16).save_pretrained(folder)
    write_config(folder, said, architecture)
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    tensors = {
        name: tensor.float() if _is_kept(name, kept, tensor) else tensor
        for name, tensor in tensors.items()
    }
    return changed_names(random_values(tensors), said)


@contextmanager
def _no_random_values() -> Iterator[None]:
    """Zeros for what a constructor draws: to draw takes longer than all else, and other values
    replace them.

    Zeros, for what is in fresh memory may be outside of the bounds within which `trunc_normal_`
    draws until it is.
    """
    names = ("normal_", "uniform_")
    kept = {name: getattr(Tensor, name) for name in names}
    try:
        for name in names:
            setattr(Tensor, name, lambda tensor, *_, **__: tensor.zero_())
        yield
    finally:
        for name, method in kept.items():
            setattr(Tensor, name, method)


def write_config(folder: Path, said: Mapping[str, Any], architecture: str) -> None:
    """Say in the folder's config.json whose it is, and what the table says besides."""
    written = json.loads((folder / "config.json").read_text())
    written["architectures"] = [architecture]
    assign(written, said.get("json", {}))
    for name in said.get("without", ()):
        written.pop(name, None)
    (folder / "config.json").write_text(json.dumps(written))


def _is_kept(name: str, kept: Sequence[str], tensor: Tensor) -> bool:
    return tensor.is_floating_point() and any(part in name.split(".") for part in kept)


def random_values(tensors: Mapping[str, Tensor], seed: int = 1) -> dict[str, Tensor]:
    """Every float replaced by a random one: biases of zero and norms of one would hide a swap."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (
            (torch.randn(tensor.shape, generator=generator) * 0.5 + 0.01).to(tensor.dtype)
            if tensor.is_floating_point()
            else tensor
        )
        for name, tensor in tensors.items()
    }


def changed_names(tensors: Mapping[str, Tensor], said: Mapping[str, Any]) -> dict[str, Tensor]:
    """Without what the table drops, renamed, and with what it adds."""
    drop = said.get("drop")
    tensors = {
        name: tensor for name, tensor in tensors.items() if not (drop and re.search(drop, name))
    }
    tensors = renamed(tensors, said.get("rename", ()))
    extra = {
        name: torch.empty(shape, dtype=torch.bfloat16)
        for name, shape in said.get("extra", {}).items()
    }
    return tensors | random_values(extra, seed=2)


def renamed(tensors: Mapping[str, Tensor], rules: Sequence[Sequence[str]]) -> dict[str, Tensor]:
    """Apply each rule, a pattern and what takes its place, to each name, in turn."""
    for pattern, replacement in rules:
        tensors = {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}
    return dict(tensors)


def known(class_name: str) -> bool:
    """Whether transformers has a class of this name."""
    import transformers

    return hasattr(transformers, class_name) and hasattr(
        getattr(transformers, class_name), "config_class"
    )
