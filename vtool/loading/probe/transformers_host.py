"""transformers' classes at tiny size, loaded as everyone loads them:

`from_pretrained`, of a folder.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import twin
from .sources import POISON
from .state import MARKS
from .stubs import StubInstaller
from .subject import Named, NotRun, Subject


def prepare(several: bool) -> Mapping[str, str]:
    """Import it once, before any fork; its version."""
    os.environ.update(
        {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    )
    import transformers
    import transformers.modeling_utils

    if several:
        twin.warm()
    return {"name": "transformers", "version": transformers.__version__}


def names() -> list[str]:
    """Every class that one of transformers' Auto classes leads to."""
    from transformers.models.auto import modeling_auto

    found: dict[str, None] = {}
    for word, mapping in vars(modeling_auto).items():
        if word.endswith("_MAPPING_NAMES"):
            for value in mapping.values():
                found |= dict.fromkeys([value] if isinstance(value, str) else value)
    return sorted(found)


class Holder:
    """What a load is into.

    `from_pretrained` makes the model itself; before that there is nothing to mark.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.byte = MARKS[0]
        self.unread: set[str] = set()

    def named_parameters(self, remove_duplicate: bool = True) -> Iterable[Named]:
        """Those of the model, once it is there."""
        return (
            self.model.named_parameters(remove_duplicate=remove_duplicate)
            if self.model is not None
            else ()
        )

    def named_buffers(self, remove_duplicate: bool = True) -> Iterable[Named]:
        """Those of the model, once it is there."""
        return (
            self.model.named_buffers(remove_duplicate=remove_duplicate)
            if self.model is not None
            else ()
        )

    def mark_with(self, byte: int) -> None:
        """The byte that parameters without a tensor of their own are to be filled with."""
        self.byte = byte


def subject(name: str, folder: Path, progress: Callable[[str], None]) -> Subject:
    """The tiny twin of a class.

    Raises:
        NotRun: why there is none.
    """
    import transformers

    if not twin.known(name):
        raise NotRun(f"transformers has no class `{name}`")
    progress("tiny twin")
    said = twin.entry(name)
    mender = StubInstaller(twin.TABLE["fields"], ())
    checkpoint = mender.run(
        lambda: twin.save_twin(name, said if "like" not in said else {}, folder, name)
    )
    found = getattr(transformers, name)

    def load(holder: Holder, weights: Iterable[Named]) -> None:
        _write(folder, dict(weights))
        torch.manual_seed(0)
        with _marking(holder.byte):
            holder.model, told = found.from_pretrained(
                folder, dtype="auto", output_loading_info=True
            )
        holder.unread = set(told["unexpected_keys"])

    method = inspect.unwrap(found.__init__)
    return Subject(
        make=Holder,
        checkpoint=checkpoint,
        load=load,
        origin="twin",
        streams=False,
        about={
            "class": f"{found.__module__}.{found.__name__}",
            "file": method.__code__.co_filename,
            "line": method.__code__.co_firstlineno,
        },
        unread=lambda holder: holder.unread,
        destroy=lambda: _destroy(folder / "model.safetensors"),
    )


def _write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    for file in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        file.unlink()
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


def _destroy(file: Path) -> None:
    """Overwrite its tensors, in place:

    a model that has the file mapped into its memory changes with it.
    """
    with file.open("r+b") as opened:
        start = 8 + int.from_bytes(opened.read(8), "little")
        length = opened.seek(0, os.SEEK_END) - start
        opened.seek(start)
        opened.write(bytes([POISON]) * length)


@contextmanager
def _marking(byte: int) -> Any:
    """transformers gives what no tensor was loaded into its initial value: here, the mark.

    It asks each model among the parts of a model for the initial values of its own modules.
    """
    from transformers import PreTrainedModel

    original = PreTrainedModel._initialize_weights

    def initialise(self: Any, module: Any, *arguments: Any, **more: Any) -> None:
        missing = [
            parameter
            for parameter in module.parameters(recurse=False)
            if not getattr(parameter, "_is_hf_initialized", False)
        ]
        if getattr(module, "_is_hf_initialized", False):
            missing = []
        original(self, module, *arguments, **more)  # buffers are computed there
        with torch.no_grad():
            for parameter in missing:
                parameter.untyped_storage().fill_(byte)

    PreTrainedModel._initialize_weights = initialise
    try:
        yield
    finally:
        PreTrainedModel._initialize_weights = original
