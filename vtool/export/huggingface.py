"""Hugging Face folders of trained models and adapters, for transformers, peft and vLLM."""

import copy
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from vtool.config.schema import Lora
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.printable import printable
from vtool.export.file_modes import share_mode
from vtool.families.family import load_family
from vtool.model_folder import MODEL_CONFIG, PROCESSOR_FILES, TOKENIZER_CONFIG, ModelFolder
from vtool.models.adapters import write_adapter
from vtool.models.model_class import class_of
from vtool.models.nf4 import NF4_RECORD
from vtool.models.processor import Processor


def write_export(
    model: Any, state: Mapping[str, Tensor], processor: Processor, family_name: str, folder: Path
) -> Path:
    """Write model, tokenizer, chat template and processor settings, and put them in place whole.

    Args:
        model: gives its config; its own weights are not looked at.
        state: the whole weights by name, tied ones once.

    Raises:
        Findings: `run-folder-unwritable`; an export that was there before is then still there.
    """

    def fill(temporary: Path) -> None:
        family = load_family(family_name)
        _as_transformers_has_it(model, family_name).save_pretrained(
            temporary, **family.save_arguments(state)
        )
        _write_dtype(state, ModelFolder(temporary))
        processor.save(temporary)
        if processor.video_processor is not None:  # else they are all of transformers' own
            own = ModelFolder(temporary).read(PROCESSOR_FILES[0])
            for name, settings in family.serving_files(own, processor.video.as_json()).items():
                (temporary / name).write_text(json.dumps(settings, indent=2) + "\n")

    return _put(fill, folder)


def _as_transformers_has_it(model: Any, family_name: str) -> Any:
    """Return the model; for a user's own class, transformers' class of it without weights.

    Only that knows what names weights have in files, and writes its own name into config.json.
    """
    kind = load_family(family_name).model_class()
    if class_of(model) is kind:
        return model
    with torch.device("meta"):
        # by a run's own attention, of a tower, transformers would look for a package
        own = kind._from_config(copy.deepcopy(model.config), attn_implementation="sdpa")
    own.generation_config = model.generation_config
    return own


def export_adapter(
    settings: Lora, tensors: Mapping[str, Tensor], base: Path, processor: Processor, folder: Path
) -> Path:
    """Write an adapter in peft's format, with tokenizer and chat template, and put it in place.

    Args:
        tensors: the adapter's, by peft's names.
        base: the folder of the model that it is for.

    Raises:
        Findings: `run-folder-unwritable`; an export that was there before is then still there.
    """

    def fill(temporary: Path) -> None:
        temporary.mkdir(parents=True)
        write_adapter(settings, tensors, base, temporary)
        processor.save(temporary)

    return _put(fill, folder)


def about_base(
    settings: Lora | None, base: Path, folder: Path, *, merged: bool
) -> list[Diagnostic]:
    """Return the note on an export whose base was in NF4: that base is no folder's.

    Args:
        settings: of the adapter.
        base: the folder of the weights from which that base was made.
        folder: the export.
        merged: the adapter is merged into its base.
    """
    if settings is None or settings.base_dtype != "nf4":
        return []
    message = (
        f"{folder} is an adapter for {base} in NF4, as {NF4_RECORD} there says: added to or merged"
        " into the weights as that folder has them, it gives another model"
    )
    help = f"for a whole model: vtool export RUN --merge; else open the base as {NF4_RECORD} says"
    if merged:
        message = (
            f"{folder} is what was trained: {base} in NF4, unpacked, with the adapter added; its"
            " other weights are not those of that folder"
        )
        help = "serve it as it is; add no adapter of the run to the weights of that folder"
    return [Diagnostic("quantized-base", message, help, "lora.base_dtype")]


def _write_dtype(state: Mapping[str, Tensor], folder: ModelFolder) -> None:
    """Write the tensors' own dtype into config.json, for whoever loads them.

    transformers has written that of the model's first parameter: on an engine that computes in
    bfloat16 and keeps float32 weights too, whoever opened the folder would get the weights rounded.
    """
    widest = reduce(
        torch.promote_types,
        (tensor.dtype for tensor in state.values() if tensor.is_floating_point()),
    )
    settings = folder.read(MODEL_CONFIG)
    for part in (settings, *settings.values()):
        if isinstance(part, dict) and "dtype" in part:
            part["dtype"] = str(widest).removeprefix("torch.")
    text = json.dumps(settings, indent=2, sort_keys=True)
    (folder.path / MODEL_CONFIG).write_text(text + "\n")


def _put(fill: Callable[[Path], None], folder: Path) -> Path:
    """Fill a folder under another name, and rename it."""
    temporary = folder.with_name(f".writing-{folder.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        fill(temporary)
        share_mode(temporary, like=TOKENIZER_CONFIG)
        _put_in_place(temporary, folder)
    except Exception as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # The tokenizers library raises a bare Exception on a full disk.
        if not (isinstance(error, OSError | SafetensorError) or type(error) is Exception):
            raise
        raise Findings(
            Diagnostic("run-folder-unwritable", f"{folder}: {error}", parameter="run.dir")
        ) from error
    return folder


def _put_in_place(temporary: Path, folder: Path) -> None:
    """Rename a folder over an older one, which is removed; with files of the user's, set aside."""
    old = folder.with_name(f".removing-{folder.name}")
    shutil.rmtree(old, ignore_errors=True)  # of an export that was killed
    if folder.is_symlink() or not folder.is_dir():
        os.rename(temporary, folder)
        return
    others = sorted(
        {path.name for path in folder.iterdir()} - {p.name for p in temporary.iterdir()}
    )
    if others:
        old = folder.with_name(f"{folder.name}.set-aside-{os.urandom(3).hex()}")
    os.rename(folder, old)
    try:
        os.rename(temporary, folder)
    except OSError:
        os.rename(old, folder)
        raise
    if others:
        named = ", ".join(others[:8]) + (" …" if len(others) > 8 else "")
        message = f"{folder} held what no export writes ({named}): it is {old.name} now"
        print(printable(message), file=sys.stderr)
    else:
        shutil.rmtree(old, ignore_errors=True)
