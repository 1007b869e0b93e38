"""The model that is served: an export, or an adapter on its base; written first where it is not."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.progress import working
from vtool.evaluation.exported import Export
from vtool.evaluation.subject import EvaluatedModel, find_folder, open_model
from vtool.families.family import load_family
from vtool.model_folder import MODEL_CONFIG, ModelFolder
from vtool.models.adapters import CONFIG, is_for_nf4
from vtool.models.processor_files import differing_pixels
from vtool.serving.command import ServedModel, largest_rank
from vtool.training.export_run import export_run
from vtool.training.run_folder import RunFolder

_NO_NAMES = ("export", "merged")
"""Folders of a run that do not say what is in them."""


def find_model(
    given: str,
    name: str | None,
    write: bool,
    say: Callable[[str], object],
    base: Path | None = None,
) -> tuple[ServedModel, EvaluatedModel]:
    """Find the model to serve; export or merge it where that has not been done.

    Args:
        given: a run's folder or name, an export, an adapter, or a model's folder.
        name: what requests call it; None: the name of its run, or of its folder.
        write: do that, and do not only say how.
        say: is given a line on what happens.
        base: where the weights under an adapter are, in the place of what the adapter says.

    Raises:
        Findings: as `open_model` and `export_run`; `not-servable`; fatal.
    """
    path = find_folder(given)
    folder = RunFolder(path)
    if write and folder.checkpoints.is_dir() and not folder.export.exists():
        say(f"{given} has no export yet: vtool export {shlex.quote(given)}")
        _export(path, merge=False)
    subject = open_model(given, base)
    export, run = subject.export, subject.run
    if run is not None and run.model.modeling is not None:
        say(f"vLLM runs its own class of {export.family}: what {run.model.modeling} computes")
        say("  otherwise is not served")
    name = name or _name(path)
    config = _read(export.base, MODEL_CONFIG)
    if not subject.is_adapter:
        return ServedModel(name, export.folder, config), subject
    adapter = _read(export.folder, CONFIG)
    why = _why_merge(adapter, export.folder) or _other_pixels(export)
    if why:
        return ServedModel(name, _merged(path, given, why, write, say), config), subject
    return ServedModel(name, export.base, config, export.folder, int(adapter.get("r", 0))), subject


def _why_merge(adapter: dict[str, Any], folder: Path) -> str | None:
    """Return the reason why vLLM needs an adapter merged into its base; None where it does not."""
    if is_for_nf4(folder):
        return "its base is one in NF4, and vLLM would add it to the weights before that"
    if adapter.get("use_dora"):
        return "vLLM has no DoRA"
    if adapter.get("modules_to_save"):
        return "vLLM takes no whole modules with an adapter (modules_to_save)"
    if int(adapter.get("r", 0)) > largest_rank():
        return f"vLLM takes adapters up to rank {largest_rank()}"
    return None


def _other_pixels(export: Export) -> str | None:
    """Return the reason why an adapter that was trained on other sizes than its base's is merged.

    vLLM takes the settings of images and videos from the base's folder.
    """
    own, base = ModelFolder(export.folder), ModelFolder(export.base)
    found = differing_pixels(own, base, load_family(export.family))
    return f"vLLM would take the base's settings of images and videos: {found}" if found else None


def _merged(path: Path, given: str, why: str, write: bool, say: Callable[[str], object]) -> Path:
    """Return the folder of the whole model, with the adapter merged in."""
    folder, command = RunFolder(path), f"vtool export {shlex.quote(given)} --merge"
    if (folder.merged / MODEL_CONFIG).exists():
        return folder.merged
    if not write or not folder.checkpoints.is_dir():
        message = f"{path} is an adapter, and {why}"
        raise Findings(Diagnostic("not-servable", message, f"merge it: {command}"), fatal=True)
    say(f"{why}: {command}")
    return _export(path, merge=True)


def _export(path: Path, *, merge: bool) -> Path:
    with working("exporting the model"):
        folder, _ = export_run(path, merge=merge)
    return folder


def _name(path: Path) -> str:
    real = path.resolve()
    return real.parent.name if real.name in _NO_NAMES else real.name


def _read(folder: Path, name: str) -> dict[str, Any]:
    """Return a config; what could not be read has been refused before, where it is a model's.

    Raises:
        Findings: `not-servable`; fatal.
    """
    try:
        found = ModelFolder(folder).read(name)
    except (OSError, ValueError, RecursionError) as error:
        message = f"{folder / name} cannot be read: {type(error).__name__}"
        raise Findings(Diagnostic("not-servable", message), fatal=True) from error
    return found if isinstance(found, dict) else {}
