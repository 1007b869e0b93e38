"""The weights that a run's adapters are for: where they are, and that they stay what they were.

A checkpoint of a run with adapters holds these alone. Random weights are written into the run's
folder before its first step; those of a folder stay there, and their digests are kept.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from vtool.config.schema import Model, Run
from vtool.contents import read_small_json
from vtool.export.huggingface import write_export
from vtool.models.base_files import check_same_weights, file_digests
from vtool.models.build import build_model
from vtool.models.processor import Processor
from vtool.training.own_folder import write_atomically
from vtool.training.run_folder import RunFolder, reading
from vtool.training.start import Start
from vtool.training.weights import build_whole


def base_of(run: Run, folder: RunFolder) -> Path:
    """Return the folder of the weights under the adapters."""
    if run.model.starts_from == "pretrained" and not folder.base.exists():
        assert run.model.path is not None, "a rule demands it"
        return Path(run.model.path)
    return folder.base


def base_settings(run: Run, folder: RunFolder) -> Model:
    """Return `run.model` as a model that is loaded from that folder."""
    return run.model.model_copy(
        update={"path": str(base_of(run, folder)), "init": "pretrained", "size": None}
    )


def keep_base(run: Run, folder: RunFolder, processor: Processor, start: Start) -> None:
    """Write weights down that are in no folder, or hold those there against the run's beginning.

    Random ones are in none, nor may those be that another run has trained.

    Raises:
        Findings: `base-changed`, `run-folder-unwritable`.
    """
    origin, begun = start.origin or folder, start.weights
    whole = begun is not None and not begun.adapted
    if not folder.base.exists():
        with folder.writing():
            if (source := _base_to_copy(run, start)) is not None:
                temporary = folder.base.with_name(".writing-base")
                shutil.rmtree(temporary, ignore_errors=True)
                shutil.copytree(source, temporary)
                temporary.rename(folder.base)
            elif start.checkpoint is None and (run.model.starts_from == "random" or whole):
                seed = run.run.seed
                model = (
                    build_model(run.model, processor, folder.processor, seed)
                    if begun is None
                    else build_whole(begun, run.model, processor, folder, seed)
                )
                write_export(
                    model, dict(model.named_parameters()), processor, run.model.family, folder.base
                )
    found = file_digests(base_of(run, folder))
    if start.checkpoint is not None:
        check_base(origin, base_of(run, folder), found)
    elif begun is not None and begun.run is not None and begun.adapted:
        check_base(RunFolder(begun.run), base_of(run, folder), found)
    elif begun is not None and begun.base is not None:
        check_same_weights(begun.base, base_of(run, folder), file_digests(begun.base), found)
    with folder.writing():
        write_atomically(folder.base_files, json.dumps(found, indent=1) + "\n")


def _base_to_copy(run: Run, start: Start) -> Path | None:
    """Return the folder of weights beneath adapters that only another run's folder has."""
    begun = start.weights
    if begun is not None and begun.base is not None:
        of_a_run = begun.run is not None and begun.base == RunFolder(begun.run).base
        return begun.base if of_a_run or run.model.starts_from == "random" else None
    return start.origin.base if start.origin is not None and start.origin.base.exists() else None


def check_base(origin: RunFolder, base: Path, found: dict[str, Any] | None = None) -> None:
    """Hold weights against those that a run began with.

    Raises:
        Findings: `base-changed`.
    """
    with reading(origin.base_files):
        written = read_small_json(origin.base_files)
    check_same_weights(origin.path, base, written, file_digests(base) if found is None else found)
