"""The hub's cache on this machine: the folder of a model, and whether all of it is there.

ModelScope's cache comes second, where ModelScope is installed.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from vtool.diagnostics import Diagnostic, Findings
from vtool.hub.names import HubName
from vtool.model_folder import INDEX, MODEL_CONFIG, WHOLE, ModelFolder

_LISTED = 3


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the hub's cache on this machine: its folder and its commit."""

    folder: Path
    commit: str | None
    """None in ModelScope's cache, which does not say it."""


def find_cached_model(model: HubName, parameter: str | None = None) -> CachedModel:
    """Return a model's folder in the cache, of its revision; nothing is downloaded.

    Args:
        model: its name.
        parameter: the setting that names it.

    Raises:
        Findings: `hub-model-absent`, `hub-incomplete`; each has the name as `seen`.
    """
    if find_spec("huggingface_hub") is None:
        message = f"{model} is no folder here, and without huggingface_hub there is no cache"
        help = "pip install huggingface_hub; or name a folder"
        raise Findings(Diagnostic("hub-model-absent", message, help, parameter), fatal=True)
    from huggingface_hub import errors, snapshot_download

    incomplete = getattr(errors, "IncompleteSnapshotError", ())  # older releases have none
    try:
        found = snapshot_download(model.name, revision=model.revision, local_files_only=True)
    except incomplete as error:
        message = f"{model}: {str(error).splitlines()[0]}"
        raise absent(model, message, parameter, "hub-incomplete") from error
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, OSError) as error:
        if (folder := _in_modelscope(model)) is not None:
            return CachedModel(_whole(model, folder, parameter), None)
        message = f"{model} is no folder here, and no model in the cache of the hub"
        raise absent(model, message, parameter) from error
    folder = _whole(model, Path(found), parameter)
    return CachedModel(folder, folder.name)


def _whole(model: HubName, folder: Path, parameter: str | None) -> Path:
    """Return a model's folder, of which no file is missing.

    Raises:
        Findings: `hub-incomplete`.
    """
    if missing := missing_files(folder):
        listed = ", ".join(missing[:_LISTED]) + ("" if len(missing) <= _LISTED else ", …")
        files = "a file is" if len(missing) == 1 else f"{len(missing)} files are"
        message = f"{model}: {files} missing in {folder}: {listed}"
        raise absent(model, message, parameter, "hub-incomplete")
    return folder


def _in_modelscope(model: HubName) -> Path | None:
    """Return a model's folder in ModelScope's cache; None where there is none.

    A revision is not looked for there: a folder does not say which it is of.
    """
    if find_spec("modelscope") is None or model.revision is not None:
        return None
    cache = os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope/hub"
    owner, _, name = model.name.partition("/")
    places = (
        Path(cache).expanduser() / above / owner / own
        for above in ("models", "")  # earlier releases have no `models`
        for own in (name.replace(".", "___"), name)
    )
    return next((folder for folder in places if (folder / MODEL_CONFIG).is_file()), None)


def absent(
    model: HubName, message: str, parameter: str | None, rule: str = "hub-model-absent"
) -> Findings:
    """Return the finding of a model that is not there, with the command that downloads it."""
    or_else = f"; or give its folder: {parameter}=FOLDER" if parameter else ""
    help = f"{model.download}{or_else}"
    finding = Diagnostic(rule, message, help, parameter, seen=str(model))
    return Findings(finding, fatal=True)


def missing_files(folder: Path) -> list[str]:
    """Return the files that a model's folder needs and has not, by its own index."""
    missing = [] if (folder / MODEL_CONFIG).exists() else [MODEL_CONFIG]
    index = folder / INDEX
    if not index.exists():
        there = any(folder.glob("*.safetensors")) and not _dangling(folder)
        return missing + ([] if there else [WHOLE])
    try:
        shards = ModelFolder(folder).shards
    except (OSError, ValueError):
        return [*missing, INDEX]
    return missing + [shard for shard in shards if not (folder / shard).exists()]


def _dangling(folder: Path) -> bool:
    return any(not file.exists() for file in folder.glob("*.safetensors"))
