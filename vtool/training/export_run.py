"""Export a run from its newest checkpoint, whether it has finished or not."""

import json
from dataclasses import replace
from pathlib import Path

import yaml

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Findings
from vtool.export.huggingface import export
from vtool.models.build import build_model
from vtool.models.processor import load_processor
from vtool.training.checkpoint import load, newest
from vtool.training.run_folder import RunFolder


def open_run(path: Path) -> tuple[RunFolder, Run]:
    """A run's folder and its settings.

    Raises:
        Findings: `not-a-run`.
    """
    folder = RunFolder(path)
    try:
        return folder, Run.model_validate_json(json.dumps(yaml.safe_load(folder.config.read_text())))
    except (OSError, ValueError) as error:
        raise Findings(Diagnostic("not-a-run", f"{path} is not the folder of a run: config.yaml cannot be read"), fatal=True) from error


def export_run(path: Path, output: Path | None = None) -> tuple[Path, int]:
    """Write the newest whole checkpoint as a Hugging Face folder; returns where, and its step.

    Raises:
        Findings: `not-a-run`, `no-checkpoint`, `corrupt-checkpoint`.
    """
    folder, run = open_run(path)
    found, damaged = newest(folder.checkpoints)
    if found is None:
        whole = "no checkpoint of this run is whole: there is nothing to export"
        raise Findings(
            [replace(finding, help=whole) for finding in damaged] or [Diagnostic("no-checkpoint", f"{path} has no checkpoint yet")]
        )
    if output is not None:
        output = output.resolve()
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            message = f"{output} exists and is not empty: nothing there is overwritten"
            raise Findings(Diagnostic("run-folder-unwritable", message, help="give a folder that does not exist yet: --output FOLDER"))
    processor = load_processor(folder.processor, run.model.family, run.data.image)
    model = build_model(run.model, processor, folder.processor, run.run.seed, weights=False)
    snapshot = load(found)
    missing = model.load_state_dict(snapshot.model, strict=False)
    tied = set(model.state_dict()) - {name for name, _ in model.named_parameters()}
    assert not missing.unexpected_keys, "a checkpoint has no tensor that its model has not"
    assert set(missing.missing_keys) <= tied, "a checkpoint has every tensor of its model"
    return export(model, snapshot.model, processor, run.model.family, output or folder.export), snapshot.step
