"""Tiny twins: a transformers class made small, saved, and read back under its files' names."""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import error_text
from .shrink import LAYERS, assign, shrink
from .state import MARKS, fill_with_byte, marked, named_parameters

TWINS: Mapping[str, Any] = json.loads((Path(__file__).parent / "twins.json").read_text())
"""Facts that no rule gives: `renamings` of names, values of `fields`, and `classes` by name.

An entry of a class has, where it needs them: `as` (take over another's entry), `like`
(transformers' class of the same weights), `own` (true where the class takes that one's files as
they are), `config_class`, `config` (arguments of it), `layers`, `set` (fields of the config),
`json` and `without` (fields of the written config.json), `drop`, `rename` and `extra` (tensors),
`processor`, `served_as`, `drafts`.
"""
TWIN_FOLDER = "twin"
"""The folder of the twin as transformers loads it, in the folder that the class is made from."""
TwinEntry = Mapping[str, Any]
"""The table's entry of a class; empty where it has none."""


def warm_up() -> None:
    """Build the table that transformers builds when a process saves its first model.

    Before any fork, so that it is built once.
    """
    with suppress(ImportError, AttributeError):  # older versions of transformers have none
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        get_checkpoint_conversion_mapping("llama")


def twin_entry(name: str) -> dict[str, Any]:
    """Return the table's entry of a class, with what it takes over from another's."""
    entry = dict(TWINS["classes"].get(name, {}))
    return {**twin_entry(entry.pop("as")), **entry} if "as" in entry else entry


def tiny_config(config_class: Any, entry: TwinEntry) -> Any:
    """Return a shrunk config of a class of configs."""
    made = config_class(**entry.get("config", {}))
    shrink(made, entry.get("layers", LAYERS))
    assign(made, entry.get("set", {}))
    try:
        return type(made).from_dict(_without_exceptions(made.to_dict()))
    except (ValueError, TypeError, AttributeError):
        return made  # a class that cannot read its own file back


def _without_exceptions(values: Any) -> Any:
    """Drop what single layers have of their own: it names layers that are no longer there."""
    if not isinstance(values, dict):
        return values
    kept = {key: value for key, value in values.items() if key != "per_layer_config"}
    return {key: _without_exceptions(value) for key, value in kept.items()}


def save_twin(
    class_name: str, entry: TwinEntry, folder: Path, architecture: str
) -> dict[str, Tensor]:
    """Build the tiny model and save it into `folder`.

    It is there a second time, in the folder `TWIN_FOLDER`, with the values that are returned.

    Returns:
        Its tensors under the names of the files, with other, distinct values.
    """
    import transformers
    from safetensors.torch import load_file, save_file

    model_class = getattr(transformers, class_name)
    config = tiny_config(model_class.config_class, entry)
    torch.manual_seed(0)
    with _no_random_values():
        model = model_class(config)
    kept = [
        *(getattr(model, "_keep_in_fp32_modules", None) or ()),
        *(getattr(model, "_keep_in_fp32_modules_strict", None) or ()),
    ]
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / TWIN_FOLDER).mkdir()
    shutil.copyfile(folder / "config.json", folder / TWIN_FOLDER / "config.json")
    write_config(folder, entry, architecture)
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and any(part in name.split(".") for part in kept):
            tensors[name] = tensor.float()
    tensors = random_values(tensors)
    save_file(tensors, folder / TWIN_FOLDER / "model.safetensors", {"format": "pt"})
    return changed_names(tensors, entry)


@contextmanager
def _no_random_values() -> Iterator[None]:
    """Fill with zeros what a constructor draws: drawing takes longer than all else.

    Not left as it is: `trunc_normal_` draws again until values are within its bounds, and those of
    fresh memory may never be.
    """
    kept = {name: getattr(Tensor, name) for name in ("normal_", "uniform_")}
    try:
        for name in kept:
            setattr(Tensor, name, lambda tensor, *_, **__: tensor.zero_())
        yield
    finally:
        for name, method in kept.items():
            setattr(Tensor, name, method)


def save_config(config_class: Any, entry: TwinEntry, folder: Path, architecture: str) -> None:
    """Save a tiny config of a class of configs into `folder`."""
    tiny_config(config_class, entry).save_pretrained(folder)
    write_config(folder, entry, architecture)


def write_config(folder: Path, entry: TwinEntry, architecture: str) -> None:
    """Write the architecture and the fields of the table's entry into the folder's config.json."""
    written = json.loads((folder / "config.json").read_text())
    written["architectures"] = [architecture]
    assign(written, entry.get("json", {}))
    for name in entry.get("without", ()):
        written.pop(name, None)
    (folder / "config.json").write_text(json.dumps(written))


def random_values(tensors: Mapping[str, Tensor], seed: int = 1) -> dict[str, Tensor]:
    """Return random floats of the same shapes: zero biases and norms of one would hide a swap."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (
            (torch.randn(tensor.shape, generator=generator) * 0.5 + 0.01).to(tensor.dtype)
            if tensor.is_floating_point()
            else tensor
        )
        for name, tensor in tensors.items()
    }


def changed_names(tensors: Mapping[str, Tensor], entry: TwinEntry) -> dict[str, Tensor]:
    """Drop, rename and add tensors as an entry of the table says."""
    drop = entry.get("drop")
    tensors = {
        name: tensor for name, tensor in tensors.items() if not (drop and re.search(drop, name))
    }
    tensors = renamed(tensors, entry.get("rename", ()))
    extra = {
        name: torch.empty(shape, dtype=torch.bfloat16)
        for name, shape in entry.get("extra", {}).items()
    }
    return tensors | random_values(extra, seed=2)


def renamed(tensors: Mapping[str, Tensor], rules: Sequence[Sequence[str]]) -> dict[str, Tensor]:
    """Apply rules, each a pattern and its replacement, to each name, in turn."""
    for pattern, replacement in rules:
        tensors = {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}
    return dict(tensors)


def known(class_name: str) -> bool:
    """Return whether transformers has a class of this name that has a config."""
    import transformers

    return hasattr(transformers, class_name) and hasattr(
        getattr(transformers, class_name), "config_class"
    )


def choose_names(
    checkpoint: Mapping[str, Tensor],
    renamings: Sequence[Sequence[Sequence[str]]],
    count: Callable[[Mapping[str, Tensor]], float],
) -> tuple[Mapping[str, Tensor], float]:
    """Rename a checkpoint as its class loads most: transformers saves some names of its own.

    Args:
        renamings: lists of rules to try, as `renamed` takes them.
        count: the number of parameters that a checkpoint leaves unwritten.

    Returns:
        The checkpoint under the best names, and how many parameters it leaves unwritten.
    """
    best, fewest = checkpoint, count(checkpoint)
    for rules in renamings:
        if not fewest:
            break
        tried = renamed(checkpoint, rules)
        if list(tried) != list(checkpoint) and (left := count(tried)) < fewest:
            best, fewest = tried, left
    return best, fewest


def about_twin(
    name: str,
    like: str,
    model_class: type,
    saved: Mapping[str, Tensor],
    taken: Iterable[str],
    own: bool = False,
) -> dict[str, Any]:
    """Return the facts about a twin that `About` has.

    Args:
        name: the architecture's, whose entry of the table may add tensors.
        like: transformers' class that the twin is of.
        saved: the twin's tensors under the names of its files.
        taken: the names under which the class loads them.
        own: the table says that the class takes the files of `like`, whatever its own name.
    """
    backend = ".models.transformers" in model_class.__module__  # it runs transformers' own class
    added = twin_entry(name).get("extra", {})
    return {
        "like": like,
        "own_twin": like == name or backend or own,
        "added": tuple(name for name in taken if name in added),
        "renamed": tuple(name for name in taken if name not in saved),
    }


def load_error(
    make: Callable[[], Any],
    checkpoint: Mapping[str, Tensor],
    run: Callable[[Callable[[], Any]], Any] = lambda step: step(),
) -> str | None:
    """Return the error that a checkpoint's load raises, in one line; None where it succeeds.

    Args:
        run: runs the load, and may run it again where it raises.
    """
    try:
        run(
            lambda: make().load_weights(
                (name, tensor.clone()) for name, tensor in checkpoint.items()
            )
        )
    except Exception as error:
        return error_text(error)
    return None


def count_unwritten(
    make: Callable[[], Any],
    checkpoint: Mapping[str, Tensor],
    run: Callable[[Callable[[], Any]], Any] = lambda step: step(),
) -> float:
    """Count the parameters that a load leaves as they were; infinitely many where it raises.

    Args:
        run: runs the load, and may run it again where it raises.
    """

    def load() -> Any:
        model = make()
        fill_with_byte(model, MARKS[0])
        model.load_weights((name, tensor.clone()) for name, tensor in checkpoint.items())
        return model

    try:
        model = run(load)
    except Exception:
        return float("inf")
    return sum(bool(marked(tensor, MARKS[0]).all()) for tensor in named_parameters(model).values())
