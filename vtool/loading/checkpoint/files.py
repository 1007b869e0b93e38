"""The files of a checkpoint folder, and findings about them without a look into the weights."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtool.contents import stand_in
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.diagnostic import Severity
from vtool.loading.checkpoint import strict_json
from vtool.loading.checkpoint.about_file import about_file, why_not_json
from vtool.loading.words import listed
from vtool.model_folder import (
    INDEX,
    JSON_OF_MODEL,
    LARGEST_SETTINGS_FILE,
    MODEL_CONFIG,
    ModelFolder,
)

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_BESIDE_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler", "progress")
"""Beginnings of files that trainers keep with the weights, which no loader takes for weights."""
_CONFIGS = (MODEL_CONFIG, "adapter_config.json", "params.json", "model_index.json")
"""The config files of transformers, PEFT, Mistral and diffusers."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a folder that are audited."""

    safetensors: tuple[Path, ...]
    index: Path | None


def is_weights(file: Path) -> bool:
    """Return True unless the name is that of an optimizer's state, or the like."""
    return not file.name.startswith(_BESIDE_WEIGHTS)


def is_file(file: Path) -> bool:
    """Return if there is such a file; a name longer than any can be is none."""
    try:
        return file.is_file()
    except OSError:
        return False


def list_folder(folder: Path) -> tuple[Files, list[Diagnostic]]:
    """Return the files to audit, and findings about the others.

    They are about pickles, links out of the folder, no weights, and no config.

    Raises:
        OSError: the folder cannot be listed.
    """
    entries = sorted(folder.iterdir())
    safetensors = tuple(
        entry
        for entry in entries
        if entry.name.endswith(".safetensors") and not entry.name.startswith(".")
    )
    indexes = [entry for entry in entries if entry.name.endswith(".safetensors.index.json")]
    index = next(
        (entry for entry in indexes if entry.name == INDEX), indexes[0] if indexes else None
    )
    pickles = [entry for entry in entries if entry.suffix in _PICKLES and not entry.is_dir()]
    findings = [*_pickles(folder, pickles, safetensors, index)]
    if not any(map(is_weights, (*safetensors, *pickles))) and not index:
        findings.append(_no_weights(folder, entries))
    elif not any((folder / name).exists() for name in _CONFIGS):
        findings.append(
            about_file(folder, "no-config", f"{folder} has weights, and no config.json")
        )
    if (folder / MODEL_CONFIG).exists():
        findings += _config(folder / MODEL_CONFIG)
    findings += [*_stand_ins(folder), *_broken_json(folder)]
    for file in (*safetensors, *indexes, folder / MODEL_CONFIG):
        findings += outside_link(file, folder)
    return Files(safetensors, index), findings


def _stand_ins(folder: Path) -> Iterator[Diagnostic]:
    """Yield a finding for each file beside the weights, such as the tokenizer, that is another."""
    for name, found in ModelFolder(folder).stand_ins.items():
        # the config, the weights and their index have findings of their own
        if name != MODEL_CONFIG and ".safetensors" not in name:
            message = f"{name}: it {found.what}"
            yield about_file(folder / name, "no-config", message, found.remedy, severity="error")


def _broken_json(folder: Path) -> Iterator[Diagnostic]:
    """Yield a finding for each other JSON file of a model, such as the tokenizer, that is none."""
    for file in (folder / name for name in JSON_OF_MODEL):
        if file.exists() and not stand_in(file):
            try:
                ModelFolder(folder).read(file.name)
            except OSError as error:
                why = f"it cannot be read: {error.strerror}"
            except (ValueError, RecursionError) as error:
                why = str(error)
            else:
                continue
            help = "copy the folder again, and compare it with its source"
            yield about_file(file, "no-config", f"{file.name}: {why}", help, severity="error")


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return the folder's config.json; empty where there is none that can be read."""
    file = folder / MODEL_CONFIG
    if not is_file(file) or _config(file):
        return {}
    content, _ = strict_json.parse_strict_json(ModelFolder(file.parent).content(file.name))
    return content if isinstance(content, dict) else {}


def _config(file: Path) -> list[Diagnostic]:
    """Return findings about a config.json by itself.

    It is read in any case: the class that would read it may not be installed.
    """

    def bad(
        message: str, severity: Severity | None = "error", help: str | None = None
    ) -> Diagnostic:
        return about_file(file, "no-config", f"{file.name}: {message}", help, severity=severity)

    if not file.is_file():
        return [bad("it is not a regular file")]
    try:
        if (size := file.stat().st_size) > LARGEST_SETTINGS_FILE:
            return [bad(f"it has {size:,} bytes; at most {LARGEST_SETTINGS_FILE:,} are read")]
        content, repeated = strict_json.parse_strict_json(
            ModelFolder(file.parent).content(file.name)
        )
    except OSError as error:
        return [bad(f"it cannot be read: {error.strerror}")]
    except ValueError as error:
        why, help = why_not_json(file, error)
        return [bad(why, help=help)]
    if not isinstance(content, dict):
        return [bad("it is not a JSON object")]
    return [bad(f"`{name}` is there twice, and readers take the last", None) for name in repeated]


def outside_link(file: Path, folder: Path) -> Iterator[Diagnostic]:
    """Yield a finding where a file, or a folder that it is in, is a link out of its folder.

    A link into the blobs of the same Hugging Face cache is none.
    """
    below = file.relative_to(folder)
    links = [
        link
        for link in (folder / parent for parent in [below, *below.parents][:-1])
        if link.is_symlink()
    ]
    # a link to nothing is reported as missing-shard
    if links and file.exists():
        target, real = file.resolve(), folder.resolve()
        homes = [real]
        if real.parent.name == "snapshots":
            homes.append(real.parent.parent / "blobs")
        if not any(map(target.is_relative_to, homes)):
            message = f"{below} is a link to {target}, outside of the folder"
            yield about_file(file, "outside-link", message, seen=os.readlink(links[-1]))


def not_safetensors(file: Path) -> Diagnostic:
    """Return the finding about a single file that is not safetensors."""
    if file.suffix in _PICKLES:
        return about_file(file, "unsafe-format", f"{file.name} may be a pickle; it was not opened")
    return about_file(file, "no-weights", f"{file.name} is not a .safetensors file")


def _pickles(
    folder: Path, pickles: list[Path], safetensors: tuple[Path, ...], index: Path | None
) -> Iterator[Diagnostic]:
    """Yield an error for pickles that a loader opens for want of safetensors, else a note."""
    main = index is not None or any(file.name.startswith("model") for file in safetensors)
    loaded = [
        file
        for file in pickles
        if is_weights(file)
        and (
            not any(map(is_weights, safetensors))
            or (not main and file.name.startswith("pytorch_model"))
        )
    ]
    if loaded:
        message = (
            f"the weights are {listed([file.name for file in loaded])}, which may be pickles; not"
            " opened, so that their tensors were not checked"
        )
        yield about_file(loaded[0], "unsafe-format", message)
    if others := [file.name for file in pickles if file not in loaded]:
        message = (
            f"next to the weights are {listed(others)}, which may be pickles; not opened, and no"
            " loader needs them"
        )
        help = "nothing, unless the folder is handed on"
        yield about_file(folder, "unsafe-format", message, help, severity="note")


def _no_weights(folder: Path, entries: list[Path]) -> Diagnostic:
    below = [*folder.glob("*/*.safetensors"), *folder.glob("*/*/*.safetensors")]
    likely = sorted({str(file.parent) for file in below})
    help = f"did you mean {listed(likely)}?" if likely else None
    message = f"{folder} holds no *.safetensors" + ("; it is empty" if not entries else "")
    return about_file(folder, "no-weights", message, help)
