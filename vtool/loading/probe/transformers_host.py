"""transformers' classes at tiny size, loaded as everyone loads them: by `from_pretrained`."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch

from . import twin
from .checkpoint_files import write_checkpoint
from .errors import NotRun
from .host import Host, OnProgress
from .sources import POISON
from .state import MARKS
from .stubs import StubInstaller
from .subject import NamedTensor, Subject, describe_class


class TransformersHost(Host):
    """transformers: each class that one of its Auto classes leads to."""

    name = "transformers"
    environment: ClassVar = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }

    def import_framework(self) -> str:
        """Import transformers, and return its version."""
        import transformers
        import transformers.modeling_utils

        return str(transformers.__version__)

    def list_subjects(self) -> list[str]:
        """Return every class that one of transformers' Auto classes leads to."""
        from transformers.models.auto import modeling_auto

        classes = [
            names
            for key, mapping in vars(modeling_auto).items()
            if key.endswith("_MAPPING_NAMES")
            for names in mapping.values()
        ]
        return sorted(
            {name for names in classes for name in ([names] if isinstance(names, str) else names)}
        )

    def module_of(self, name: str) -> str | None:
        """Return the module of a class, which is imported; see `Host`."""
        import transformers

        return getattr(getattr(transformers, name, None), "__module__", None)

    def make_subject(self, name: str, folder: Path, progress: OnProgress) -> Subject:
        """Make the tiny twin of a class; see `Host`."""
        import transformers

        if not twin.known(name):
            raise NotRun(f"transformers has no class `{name}`")
        progress("tiny twin")
        entry = twin.twin_entry(name)
        checkpoint = StubInstaller(None, twin.TWINS["fields"]).run(
            lambda: twin.save_twin(name, {} if "like" in entry else entry, folder, name)
        )
        model_class = getattr(transformers, name)

        def load(slot: ModelSlot, weights: Iterable[NamedTensor]) -> None:
            tensors = dict(weights)
            for file in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
                file.unlink()
            write_checkpoint(tensors, folder)
            torch.manual_seed(0)
            with _initializing_with(slot.byte):
                slot.model, report = model_class.from_pretrained(
                    folder, dtype="auto", output_loading_info=True
                )
            slot.unread = set(report["unexpected_keys"])

        return Subject(
            make=ModelSlot,
            checkpoint=checkpoint,
            load=load,
            origin="twin",
            streams=False,
            about=describe_class(model_class, model_class.__init__),
            unread=lambda slot: slot.unread,
            destroy=lambda: _destroy_tensors(folder / "model.safetensors"),
        )


class ModelSlot:
    """The place of a model that `from_pretrained` will make; until then it has no tensors."""

    def __init__(self) -> None:
        self.model: Any = None
        self.byte = MARKS[0]
        self.unread: set[str] = set()

    def named_parameters(self, **how: bool) -> Iterable[NamedTensor]:
        """Yield the model's parameters; none before it is made."""
        return self.model.named_parameters(**how) if self.model is not None else ()

    def named_buffers(self, **how: bool) -> Iterable[NamedTensor]:
        """Yield the model's buffers; none before it is made."""
        return self.model.named_buffers(**how) if self.model is not None else ()

    def mark_with(self, byte: int) -> None:
        """Set the byte that fills parameters without a tensor of their own."""
        self.byte = byte


def _destroy_tensors(file: Path) -> None:
    """Overwrite a file's tensors in place: a model that has the file mapped changes with it."""
    with file.open("r+b") as opened:
        start = 8 + int.from_bytes(opened.read(8), "little")
        length = opened.seek(0, os.SEEK_END) - start
        opened.seek(start)
        opened.write(bytes([POISON]) * length)


@contextmanager
def _initializing_with(byte: int) -> Iterator[None]:
    """Fill parameters that no tensor was loaded into with one byte, not with initial values.

    transformers asks each model among the components of a model to initialize its own modules.
    """
    from transformers import PreTrainedModel

    original = PreTrainedModel._initialize_weights

    def initialize(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        missing = [
            parameter
            for parameter in module.parameters(recurse=False)
            if not getattr(module, "_is_hf_initialized", False)
            and not getattr(parameter, "_is_hf_initialized", False)
        ]
        original(self, module, *args, **kwargs)  # buffers are computed there
        with torch.no_grad():
            for parameter in missing:
                parameter.untyped_storage().fill_(byte)

    PreTrainedModel._initialize_weights = initialize
    try:
        yield
    finally:
        PreTrainedModel._initialize_weights = original
