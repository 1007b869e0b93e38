"""A trained model's folder: finding it, loading it, and the settings that it was trained with."""

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from vtool.config.given_for_recipe import other_family
from vtool.config.schema import Run
from vtool.contents import small_file
from vtool.diagnostics import Diagnostic, Findings
from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.model_folder import MODEL_CONFIG, ModelFolder
from vtool.models.adapters import CONFIG, add_saved_adapter, base_of_adapter, is_for_nf4
from vtool.models.build import load_model
from vtool.models.landing import check_landing
from vtool.models.model_class import recorded_modeling
from vtool.models.nf4 import keep_in_nf4


@dataclass(frozen=True, slots=True)
class Export:
    """A trained model's folder: a whole model, or adapters for the model in another folder."""

    folder: Path
    base: Path
    """The folder with the whole model; `folder` itself where it is one."""
    family: str


def find_export(run: Path, base: Path | None = None) -> Export:
    """Find the export of a run, or take the folder for an export itself.

    Args:
        run: the folder.
        base: where the weights under an adapter are, in the place of what the adapter says.

    Raises:
        Findings: `not-a-run`, `model-does-not-load`.
    """
    folder = next(
        (
            one
            for one in (run, run / "export")
            if any(os.path.exists(one / name) for name in (MODEL_CONFIG, CONFIG))
        ),
        None,
    )
    if folder is None:
        raise Findings(_no_model(run), fatal=True)
    if not (folder / CONFIG).exists():
        base = folder
    elif base is None:
        base = base_of_adapter(folder)
    try:
        family_name = str(ModelFolder(base).read(MODEL_CONFIG)["model_type"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        message = (
            f"{base / MODEL_CONFIG} is not the config of a model: {type(error).__name__} {error}"
        )
        raise Findings(
            Diagnostic("not-a-run", message, help="write it again: vtool export RUN"), fatal=True
        ) from error
    if family_name not in FAMILIES:
        raise other_family(folder, family_name)
    return Export(folder, base, family_name)


def _no_model(folder: Path) -> Diagnostic:
    """Return the finding for a folder without a model: a run's before its export, or any other."""
    if any((folder / name).exists() for name in ("config.yaml", "checkpoints")):
        help = f"write one from its newest checkpoint: vtool export {shlex.quote(str(folder))}"
        return Diagnostic("not-a-run", f"{folder} has no exported model", help)
    message = f"{folder} is not the folder of a model or a run: it has no config.json,"
    help = "name a run, an export, an adapter's folder, or a model's (config.json, *.safetensors)"
    return Diagnostic("not-a-run", f"{message} {CONFIG} or config.yaml", help)


def load_exported(run: Path, export: Export | None = None) -> Any:
    """Load a trained model in float32, in evaluation mode, with its adapters.

    A run's model has the class that it was trained with; that of a folder by itself has
    transformers' own, as a server would.

    Args:
        run: its folder.
        export: where it is; of an adapter, one that is known to land in its base.

    Raises:
        Findings: `not-a-run`, `model-does-not-load`, `modeling-changed`, `extra-not-installed`,
            `adapter-mismatch`.
    """
    if export is None:
        export = find_export(run)
        if export.base != export.folder:
            check_landing(export.folder, export.base)
    modeling = recorded_modeling(run) if export.folder != run else None
    model = load_model(export.base, export.family, torch.float32, "sdpa", modeling).eval()
    if export.base != export.folder:
        add_saved_adapter(model, export.folder)
        if is_for_nf4(export.folder):
            keep_in_nf4(model, load_family(export.family))
    return model


def own_settings(run: Path, export: Path) -> Run | None:
    """Return the settings of an export's run, which say how it has read its rows.

    An export that stands alone says nothing about it.

    Raises:
        Findings: `not-a-run`, where the run's own settings cannot be read: its images might be
            taken in another size than it has learnt.
    """
    file = export.parent / "config.yaml"
    try:
        settings = yaml.safe_load(small_file(file))
        return Run.model_validate_json(json.dumps(settings))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        if export == run:  # and what lies next to it may be of anything
            return None
        why = error.strerror if isinstance(error, OSError) else type(error).__name__
        message = f"{file}: {why}; it says how the run has read its images"
        raise Findings(
            Diagnostic(
                "not-a-run",
                message,
                help="put it back; or, with the sizes of the export alone: vtool predict"
                f" {shlex.quote(str(export))}",
            ),
            fatal=True,
        ) from error
