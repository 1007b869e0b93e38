"""Export a run from its newest checkpoint, whether it has finished or not."""

import json
import os
from dataclasses import replace
from pathlib import Path

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Findings
from vtool.export.huggingface import about_base, export_adapter, write_export
from vtool.families.family import load_family
from vtool.models.adapters import merge_adapters
from vtool.models.build import build_model
from vtool.models.nf4 import round_to_nf4
from vtool.models.processor import load_processor
from vtool.near_runs import runs_there
from vtool.training.base import base_of, base_settings, check_base
from vtool.training.checkpoint import (
    best_before,
    newest,
    open_checkpoint,
    passed_over,
    print_warnings,
)
from vtool.training.kept_processor import check_processor
from vtool.training.own_folder import written_settings
from vtool.training.run_folder import RunFolder


def open_run(path: Path) -> tuple[RunFolder, Run]:
    """Return a run's folder and its settings.

    Raises:
        Findings: `not-a-run`.
    """
    folder = RunFolder(path)
    if not folder.config.exists():
        what = "it has no config.yaml" if path.is_dir() else "there is no such folder"
        message = f"{path} is not the folder of a run: {what}"
        raise Findings(Diagnostic("not-a-run", message, runs_there(path)), fatal=True)
    try:
        return folder, Run.model_validate_json(json.dumps(written_settings(folder.config)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise Findings(
            Diagnostic(
                "not-a-run", f"{path} is not the folder of a run: config.yaml cannot be read"
            ),
            fatal=True,
        ) from error


def export_run(path: Path, output: Path | None = None, *, merge: bool = False) -> tuple[Path, int]:
    """Write a run's checkpoint as a Hugging Face folder; return the folder and the step.

    It is the best one, where `checkpoint.keep_best` keeps it, or else the newest that is whole; a
    newer one that is not is reported.

    A run with adapters gives the adapter in peft's format; with `merge`, a whole model, each weight
    being base + scale · B · A. A base that was trained in NF4 is merged as that.

    Raises:
        Findings: `not-a-run`, `no-checkpoint`, `corrupt-checkpoint`, `nothing-to-merge`,
            `base-changed`, `processor-changed`, `extra-not-installed`.
    """
    folder, run = open_run(path)
    if merge and run.lora is None:
        raise Findings(
            Diagnostic("nothing-to-merge", f"{path} was trained without lora", parameter="lora")
        )
    found, damaged = newest(folder.checkpoints)
    if found is None:
        whole = "no checkpoint of this run is whole: there is nothing to export"
        raise Findings(
            [replace(finding, help=whole) for finding in damaged]
            or [Diagnostic("no-checkpoint", f"{path} has no checkpoint yet")]
        )
    print_warnings(passed_over(damaged))
    best, lost = best_before(found) if run.checkpoint.keep_best is not None else (None, [])
    if lost:
        raise Findings(lost)
    found = best or found
    if output is not None:
        output = Path(os.path.realpath(output))
        try:
            taken = output.exists() and (not output.is_dir() or any(output.iterdir()))
        except OSError as error:  # a name that is too long, or a folder that nobody may look into
            message = f"{output}: {error.strerror}"
            help = "give another folder: --output FOLDER"
            raise Findings(Diagnostic("run-folder-unwritable", message, help)) from error
        if taken:
            message = f"{output} exists and is not empty: nothing there is overwritten"
            raise Findings(
                Diagnostic(
                    "run-folder-unwritable",
                    message,
                    help="give a folder that does not exist yet: --output FOLDER",
                )
            )
    # Weights are exported by transformers' own class, whatever class has trained them: no file of
    # the user's is run here.
    run = run.model_copy(update={"model": run.model.model_copy(update={"modeling": None})})
    check_processor(folder)
    processor = load_processor(folder.processor, run.model.family, run.data.image, run.data.video)
    snapshot = open_checkpoint(found)
    target = output or (folder.merged if merge else folder.export)
    if run.lora is not None:
        base = base_of(run, folder)
        check_base(folder, base)
        if not merge:
            return export_adapter(run.lora, snapshot.model, base, processor, target), snapshot.step
        model = build_model(base_settings(run, folder), processor, folder.processor, run.run.seed)
        if run.lora.base_dtype == "nf4":
            round_to_nf4(model, load_family(run.model.family))
        merged = dict(
            merge_adapters(dict(model.named_parameters()), snapshot.model, run.lora.scale)
        )
        return write_export(model, merged, processor, run.model.family, target), snapshot.step
    model = build_model(run.model, processor, folder.processor, run.run.seed, weights=False)
    missing = model.load_state_dict(snapshot.model, strict=False)
    tied = set(model.state_dict()) - {name for name, _ in model.named_parameters()}
    assert not missing.unexpected_keys, "a checkpoint has no tensor that its model has not"
    assert set(missing.missing_keys) <= tied, "a checkpoint has every tensor of its model"
    return write_export(model, snapshot.model, processor, run.model.family, target), snapshot.step


def about_export(path: Path, exported: Path, *, merge: bool) -> list[Diagnostic]:
    """Return the notes on a run's export: see `about_base`.

    Raises:
        Findings: `not-a-run`.
    """
    folder, run = open_run(path)
    return about_base(run.lora, base_of(run, folder), exported, merged=merge)
