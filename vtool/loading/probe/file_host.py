"""Subjects of the user's own: a function that makes an object with `load_weights`."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor

from .audit import judged_facts, run_checks
from .checkpoint_files import read_folder
from .errors import LoadFailed, error_text
from .facts import SubjectFacts
from .hash_seeds import depends_on_hashes, differences_by_seed
from .host import Host, OnProgress
from .state import named_tensors
from .subject import Subject, describe_class
from .twin import random_values


class FileHost(Host):
    """The user's own Python files: `FILE.py:function` is a subject."""

    name = "python"
    subjects_are_users = True

    def import_framework(self) -> str:
        """Return Python's version; there is nothing to import before the file itself."""
        return sys.version.partition(" ")[0]

    def warm_up(self) -> None:
        """Import nothing: files have nothing in common."""

    def list_subjects(self) -> list[str]:
        """Return nothing: no file is registered."""
        return []

    def make_subject(self, name: str, folder: Path, progress: OnProgress) -> Subject:
        """Make a subject of the object that `FILE.py:function` makes.

        Its checkpoint is that of the user's folder, else of the file's `checkpoint()`.

        Raises:
            LoadFailed: the file or a function raises, or what it makes cannot be loaded.
        """
        path, _, function = name.rpartition(":")
        progress(f"importing {path}")
        module = _import_file(Path(path).resolve())
        factory = getattr(module, function, None)
        if not callable(factory):
            there = ", ".join(
                word
                for word, value in vars(module).items()
                if callable(value) and getattr(value, "__module__", None) == module.__name__
            )
            raise LoadFailed(
                f"{path} has no function `{function}`" + (f"; it has {there}" if there else "")
            )
        progress(f"{function}()")
        checkpoint, files = read_folder(Path(self.checkpoint)) if self.checkpoint else (None, {})
        if checkpoint is None and callable(own := getattr(module, "checkpoint", None)):
            try:
                torch.manual_seed(0)  # in every process that compares what it loads
                checkpoint = own()
            except Exception as error:
                raise LoadFailed(f"checkpoint() raises {error_text(error)}") from error
        subject = subject_of_factory(factory, checkpoint, files)
        if not depends_on_hashes(subject.code):
            return subject
        compared = partial(
            differences_by_seed, name=name, checkpoint=self.checkpoint, folder=folder
        )
        return replace(subject, elsewhere=compared)


def by_name(given: Any) -> Mapping[str, Tensor]:
    """Return a checkpoint of the user's: a mapping, or pairs as `load_weights` takes them.

    Raises:
        LoadFailed: it is neither, or has a name twice, of which a mapping would lose one.
    """
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        try:
            pairs = [(name, tensor) for name, tensor in given]
        except (TypeError, ValueError) as error:
            what = f"{type(given).__name__}, not a mapping of names to tensors, or their pairs"
            raise LoadFailed(f"the checkpoint is a {what}") from error
    tensors: dict[str, Tensor] = {}
    for name, tensor in pairs:
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            what = f"{type(name).__name__} and {type(tensor).__name__}"
            raise LoadFailed(f"the checkpoint has {what} where a name and a tensor are expected")
        if name in tensors:
            raise LoadFailed(f"the checkpoint has `{name}` twice")
        tensors[name] = tensor
    return tensors


def subject_of_factory(
    factory: Callable[[], Any],
    checkpoint: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> Subject:
    """Make a subject of what a factory makes.

    Args:
        factory: makes an object with `load_weights` and `named_parameters`.
        checkpoint: the user's own, also as pairs; None: random values under the object's own names.
        files: the shards that tensors are from.

    Raises:
        LoadFailed: the factory raises, or what it makes cannot be loaded.
    """

    def make() -> Any:
        torch.manual_seed(0)
        return factory()

    try:
        made = make()
    except Exception as error:
        raise LoadFailed(f"the factory raises {error_text(error)}") from error
    for method in ("load_weights", "named_parameters"):
        if not callable(getattr(made, method, None)):
            raise LoadFailed(f"what the factory makes, a {type(made).__name__}, has no {method}()")
    own_names = checkpoint is None
    tensors: Mapping[str, Tensor]
    if checkpoint is None:
        named = named_tensors(made)
        kept = made.state_dict() if isinstance(made, torch.nn.Module) else named
        tensors = random_values({name: named[name] for name in named if name in kept})
    else:
        tensors = by_name(checkpoint)
    if not tensors:
        raise LoadFailed("the checkpoint has no tensors")
    about = describe_class(type(made), type(made).load_weights, own_names=own_names, files=files)
    return Subject(
        make=make,
        checkpoint={name: tensor.detach() for name, tensor in tensors.items()},
        load=lambda model, weights: model.load_weights(weights),
        origin="given",
        code=(os.path.dirname(about.file),) if about.file else (),
        about=about,
    )


def facts_of(
    factory: Callable[[], Any],
    checkpoint: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
    checks: Sequence[str],
    slots: int,
    sources: Sequence[str],
) -> SubjectFacts:
    """Return the facts of a subject that is checked in this process.

    What is not judged has failed: it is all of the user's own.
    """
    try:
        made = subject_of_factory(factory, checkpoint)
        return judged_facts(made, run_checks(made, checks, slots, sources), {})
    except Exception as error:
        return SubjectFacts("failed", error_text(error))


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise LoadFailed(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise LoadFailed(f"{path.name} cannot be imported: {error_text(error)}") from error
    return module
