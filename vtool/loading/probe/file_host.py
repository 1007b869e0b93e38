"""Subjects of the user's own: a function that makes an object with `load_weights`."""

import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor

from .audit import audit, text_of
from .state import named_tensors
from .subject import LoadFailed, Subject
from .twin import random_values


def prepare(several: bool) -> Mapping[str, str]:
    """Nothing to import before the file itself."""
    return {"name": "python", "version": sys.version.partition(" ")[0]}


def names() -> list[str]:
    """Nothing is registered."""
    return []


def subject(
    name: str, folder: Path, progress: Callable[[str], None], checkpoint: str | None = None
) -> Subject:
    """The object that `FILE.py:function` makes.

    Raises:
        LoadFailed: the file or the function raises, or what it makes cannot be loaded.
    """
    path, _, function = name.rpartition(":")
    progress(f"importing {path}")
    module = _imported(Path(path).resolve())
    factory = getattr(module, function, None)
    if not callable(factory):
        there = [
            word
            for word, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        ]
        raise LoadFailed(
            f"{path} has no function `{function}`"
            + (f"; it has {', '.join(there)}" if there else "")
        )
    progress(f"{function}()")
    given, files = read_folder(Path(checkpoint)) if checkpoint else (None, {})
    if given is None and callable(own := getattr(module, "checkpoint", None)):
        try:
            given = own()
        except Exception as error:
            raise LoadFailed(f"checkpoint() raises {text_of(error)}") from error
    return of_factory(factory, given, files)


def of_factory(
    factory: Callable[[], Any],
    checkpoint: Mapping[str, Tensor] | None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> Subject:
    """A subject of the user's, with its own checkpoint; else with one that has the names of its
    parameters.

    Args:
        files: the shards that tensors are from.

    Raises:
        LoadFailed: as above.
    """

    def make() -> Any:
        torch.manual_seed(0)
        return factory()

    try:
        made = make()
    except Exception as error:
        raise LoadFailed(f"the factory raises {text_of(error)}") from error
    for method in ("load_weights", "named_parameters"):
        if not callable(getattr(made, method, None)):
            raise LoadFailed(f"what the factory makes, a {type(made).__name__}, has no {method}()")
    about: dict[str, Any] = {
        "class": f"{type(made).__module__}.{type(made).__name__}",
        "files": dict(files),
    }
    if checkpoint is None:
        about["own_names"] = True
        kept = set(made.state_dict()) if isinstance(made, torch.nn.Module) else None
        own = {
            name: tensor.detach()
            for name, tensor in named_tensors(made).items()
            if kept is None or name in kept
        }
        checkpoint = random_values(own)
    if not checkpoint:
        raise LoadFailed("the checkpoint has no tensors")
    method = inspect.unwrap(type(made).load_weights)
    place: dict[str, Any] = {}
    if inspect.isfunction(method):
        place = {"file": method.__code__.co_filename, "line": method.__code__.co_firstlineno}
    return Subject(
        make=make,
        checkpoint={name: tensor.detach() for name, tensor in checkpoint.items()},
        load=lambda model, weights: model.load_weights(weights),
        origin="given",
        code=tuple({os.path.dirname(place["file"])} if place else ()),
        about=about | place,
    )


def facts_of(
    factory: Callable[[], Any],
    checkpoint: Mapping[str, Tensor],
    checks: Sequence[str],
    slots: int,
    sources: Sequence[str],
) -> dict[str, Any]:
    """The facts of a subject that is checked in this process.

    What is not judged has failed: it is all of the user's own.
    """
    try:
        made = of_factory(factory, checkpoint)
        found = audit(made, checks, slots, sources)
    except Exception as error:
        return {"status": "failed", "reason": text_of(error)}
    return {
        "status": "judged",
        "origin": made.origin,
        "streams": made.streams,
        "about": made.about,
        "checks": found,
        "paths": {},
    }


def read_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a folder's safetensors files, in the order of its index, if it has one, and of
    its files; where it has several, each tensor's file.

    Raises:
        LoadFailed: they cannot be read, or there are none.
    """
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    tensors: dict[str, Tensor] = {}
    files: dict[str, str] = {}
    try:
        names = (
            json.loads(index.read_text())["weight_map"].values()
            if index.exists()
            else [path.name for path in folder.glob("*.safetensors")]
        )
        for file in sorted(set(names)):
            found = load_file(folder / file)
            tensors |= found
            files |= dict.fromkeys(found, file)
    except Exception as error:
        raise LoadFailed(f"{folder} cannot be read: {text_of(error)}") from error
    if not tensors:
        raise LoadFailed(f"{folder} has no safetensors files")
    return tensors, files if len(set(files.values())) > 1 else {}


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise LoadFailed(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise LoadFailed(f"{path.name} cannot be imported: {text_of(error)}") from error
    return module
