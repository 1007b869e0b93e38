"""The class of vLLM's that will load a folder: of its own config, with its own tensors."""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .by_headers import LargeFolder, header_facts
from .checkpoint_files import read_folder
from .errors import LoadFailed, NotRun, error_text
from .facts import About, SubjectFacts
from .headers import read_entries
from .host import OnProgress
from .stubs import StubInstaller
from .subject import NamedTensor, Subject, describe_class
from .vllm_setup import maker, read_vllm_config, start_vllm_groups, vllm_subject

_WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".pkl",
    ".gguf",
    ".npz",
    ".h5",
    ".msgpack",
    ".onnx",
)
LARGEST_COPY = 64 * 2**20
"""Bytes of a file next to the weights that is copied: tokenizers are the largest."""


def make_subject(users_folder: Path, folder: Path, progress: OnProgress) -> Subject:
    """Make the class that the folder's config.json names, with the folder's tensors.

    Args:
        users_folder: nothing is written in it: vLLM reads `folder`, with copies of the small files.
        folder: an empty one.

    Raises:
        NotRun: vLLM has no class that config.json names.
        LoadFailed: the tensors cannot be read.
    """
    found = _read_class(users_folder, folder, progress)
    progress("construction")
    model: Any = found.installer.run(maker(found.config))
    progress("reading the tensors")
    checkpoint, files = read_folder(users_folder)
    return vllm_subject(
        configure=lambda: read_vllm_config(folder),
        config=found.config,
        folder=folder,
        checkpoint=checkpoint,
        model=model,
        load=lambda model, weights: _load(model, weights, files),
        origin="given",
        twin=(found.names[0], users_folder, False),
        about=_about(type(model), found, files),
    )


def judge_by_headers(
    users_folder: Path, folder: Path, rules: Sequence[str], memory: int, progress: OnProgress
) -> SubjectFacts:
    """Judge the class of a folder that is too large to be loaded whole; see `make_subject`.

    Args:
        memory: resident bytes that this process may take.
    """
    found = _read_class(users_folder, folder, progress)
    entries = read_entries(users_folder)
    names = {
        name: entry.file.relative_to(users_folder).as_posix() for name, entry in entries.items()
    }
    files = names if len(set(names.values())) > 1 else {}
    make = maker(found.config)
    try:
        with torch.device("meta"):
            model_class: Any = type(found.installer.run(make))
    except Exception as error:
        raise NotRun(f"the class cannot be made without memory: {error_text(error)}") from error
    large = LargeFolder(
        make=make,
        load=lambda model, weights: _load(model, weights, files),
        entries=entries,
        about=_about(model_class, found, files),
    )
    return header_facts(large, rules, memory, progress)


@dataclass(frozen=True, slots=True)
class _Found:
    """A folder's config as vLLM reads it, and the class that it names."""

    config: Any
    names: Sequence[str]
    values: Mapping[str, Any]
    installer: StubInstaller


def _read_class(users_folder: Path, folder: Path, progress: OnProgress) -> _Found:
    """Read the folder's config as vLLM does. Raises NotRun: it has no class that is named."""
    from vllm.model_executor.models.registry import ModelRegistry

    progress("the folder's config")
    values = json.loads((users_folder / "config.json").read_text(encoding="utf-8"))
    names = values.get("architectures") or []
    if not any(name in ModelRegistry.models for name in names):
        raise NotRun(
            f"vLLM {sys.modules['vllm'].__version__} has registered no"
            f" {' or '.join(names) or 'class: config.json names none'}"
        )
    copy_small_files(users_folder, folder)
    installer = StubInstaller("vllm", fields=None)  # the user's own config is given nothing
    start_vllm_groups(0, 1, folder / "alone")
    config = installer.run(lambda: read_vllm_config(folder))
    return _Found(config, names, values, installer)


def _about(model_class: Any, found: _Found, files: Mapping[str, str]) -> About:
    return describe_class(
        model_class,
        model_class.load_weights,
        declared_dtype=_declared_dtype(found.values),
        dtype=str(found.config.model_config.dtype).removeprefix("torch."),
        replaced=tuple(found.installer.replaced),
        served=True,
        files=files,
    )


def copy_small_files(users_folder: Path, folder: Path) -> None:
    """Copy every small file that is no weights, so that nothing is written next to the user's."""
    for file in users_folder.iterdir():
        if not file.is_file() or file.name.endswith(_WEIGHTS):
            continue
        if file.stat().st_size <= LARGEST_COPY:
            shutil.copyfile(file, folder / file.name)


def _declared_dtype(values: Mapping[str, Any]) -> str | None:
    """Return the dtype that a config declares, its own or that of its text model."""
    for config in (values, values.get("text_config") or {}):
        for key in ("dtype", "torch_dtype"):
            if config.get(key):
                return str(config[key])
    return None


def _load(model: Any, weights: Iterable[NamedTensor], files: Mapping[str, str]) -> object:
    """Load a model; where that raises, say at which tensor, and of which file."""
    last = "none"

    def note(pair: NamedTensor) -> NamedTensor:
        nonlocal last
        shard = files.get(pair[0])
        last = f"`{pair[0]}`, {list(pair[1].shape)}" + (f", of {shard}" if shard else "")
        return pair

    try:
        return model.load_weights(map(note, weights))  # `map` holds no tensor, a generator would
    except Exception as error:
        raise LoadFailed(f"at tensor {last}: {error_text(error)}") from error
