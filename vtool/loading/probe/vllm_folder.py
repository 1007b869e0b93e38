"""The class of vLLM's that will load a folder, made from the folder's own config and loaded with
its own tensors.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .audit import text_of
from .file_host import read_folder
from .ranks import sharded
from .stubs import StubInstaller
from .subject import LoadFailed, Named, NotRun, Subject
from .vllm_host import _be_rank, _maker, _place, _start_distributed
from .vllm_paths import drive
from .vllm_quantized import processing, quantized_subject
from .vllm_stubs import STUBS

WEIGHTS = (
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
LARGEST = 64 * 2**20
"""Bytes of a file beside the weights that is copied: tokenizers are the largest."""


class Parts(StubInstaller):
    """Replaces what a CPU cannot make, and gives the user's own config no field that it lacks."""

    def __init__(self) -> None:
        super().__init__({}, STUBS)

    def _field(self, error: Exception) -> bool:
        return False


def subject(given: Path, folder: Path, progress: Callable[[str], None]) -> Subject:
    """The class that the folder's config.json names, with the folder's tensors.

    Args:
        given: the user's folder, of which nothing is written: vLLM is shown `folder`, with copies
            of the small files.

    Raises:
        NotRun: why there is none.
        LoadFailed: the tensors cannot be read.
    """
    from vllm.model_executor.models.registry import ModelRegistry

    progress("the folder's config")
    written = json.loads((given / "config.json").read_text(encoding="utf-8"))
    names = written.get("architectures") or []
    if not any(name in ModelRegistry.models for name in names):
        raise NotRun(
            f"vLLM {sys.modules['vllm'].__version__} has registered no"
            f" {' or '.join(names) or 'class: config.json names none'}"
        )
    copy_beside_weights(given, folder)
    mender = Parts()
    _start_distributed(0, 1, folder / "alone")
    config = mender.run(lambda: _config(folder))
    progress("construction")
    make = _maker(config)
    found = type(mender.run(make))
    progress("reading the tensors")
    checkpoint, files = read_folder(given)
    plain = Subject(
        make=make,
        checkpoint=checkpoint,
        load=lambda model, weights: _load(model, weights, files),
        origin="given",
        code=(os.path.dirname(sys.modules["vllm"].__file__ or ""),),
        about={
            "class": f"{found.__module__}.{found.__name__}",
            **_place(found),
            "declared_dtype": _word(written),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "replaced": mender.replaced,
            "served": True,
            "files": files,
        },
        paths=lambda subject: drive(subject, config),
        shards=lambda subject, reference: sharded(
            subject, lambda rank, meeting: _be_rank(config, rank, meeting), reference, folder
        ),
        process=processing(config),
    )
    return replace(
        plain,
        quantized=lambda into: quantized_subject(
            plain, folder, lambda: _config(folder), _maker, into
        ),
    )


def _config(folder: Path) -> Any:
    """As a server makes it, with the runner and the dtype that vLLM chooses itself."""
    from vllm.config import DeviceConfig, LoadConfig, ModelConfig, VllmConfig

    tokenizer = (folder / "tokenizer.json").exists()
    model = ModelConfig(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=not tokenizer,
        seed=0,
        enforce_eager=True,
        max_model_len=64,
    )
    return VllmConfig(
        model_config=model, load_config=LoadConfig(), device_config=DeviceConfig(device="cpu")
    )


def copy_beside_weights(given: Path, folder: Path) -> None:
    """Copy what is no weights, so that whatever the framework may write is not written beside the
    user's files.
    """
    for file in given.iterdir():
        if file.is_file() and not file.name.endswith(WEIGHTS) and file.stat().st_size <= LARGEST:
            shutil.copyfile(file, folder / file.name)


def _word(written: dict[str, Any]) -> str | None:
    """The dtype that a config declares, of its own or of its text's."""
    inner = written.get("text_config") or {}
    return next(
        (
            str(one[key])
            for one in (written, inner)
            for key in ("dtype", "torch_dtype")
            if one.get(key)
        ),
        None,
    )


class Followed:
    """Hands on what an iterator gives, holds nothing of it, and knows the last name, and its file."""

    def __init__(self, weights: Iterable[Named], files: Mapping[str, str]) -> None:
        self.weights = iter(weights)
        self.files = files
        self.last = "none"

    def __iter__(self) -> Iterator[Named]:
        return self

    def __next__(self) -> Named:
        pair = next(self.weights)
        self.last = f"`{pair[0]}`, {list(pair[1].shape)}" + (
            f", of {self.files[pair[0]]}" if pair[0] in self.files else ""
        )
        return pair


def _load(model: Any, weights: Iterable[Named], files: Mapping[str, str]) -> object:
    followed = Followed(weights, files)
    try:
        return model.load_weights(followed)
    except Exception as error:
        raise LoadFailed(f"at tensor {followed.last}: {text_of(error)}") from error
