"""The weights that a run's adapters are for: where they are, and that they stay what they were.

A checkpoint of a run with adapters holds these alone. Random weights are written into the run's
folder before its first step; those of a folder stay there, and their digests are kept.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import xxhash

from vtool.config.schema import Model, Run
from vtool.diagnostics import Diagnostic, Findings
from vtool.export.huggingface import export
from vtool.models.build import build_model
from vtool.models.processor import Processor
from vtool.training.own_folder import write_atomically
from vtool.training.run_folder import RunFolder, reading
from vtool.training.start import Start

BLOCK = 2**24


def base_of(run: Run, folder: RunFolder) -> Path:
    """Return the folder of the weights under the adapters."""
    if run.model.starts_from == "pretrained":
        assert run.model.path is not None, "a rule demands it"
        return Path(run.model.path)
    return folder.base


def base_settings(run: Run, folder: RunFolder) -> Model:
    """Return `run.model` as a model that is loaded from that folder."""
    return run.model.model_copy(
        update={"path": str(base_of(run, folder)), "init": "pretrained", "size": None}
    )


def keep_base(run: Run, folder: RunFolder, processor: Processor, start: Start) -> None:
    """Write random weights down, or hold those that there are against what the run began with.

    Raises:
        Findings: `base-changed`, `run-folder-unwritable`.
    """
    origin = start.origin or folder
    random = run.model.starts_from == "random"
    if random and not folder.base.exists():
        with folder.writing():
            if start.origin is not None and origin.base.exists():
                temporary = folder.base.with_name(".writing-base")
                shutil.rmtree(temporary, ignore_errors=True)
                shutil.copytree(origin.base, temporary)
                temporary.rename(folder.base)
            elif start.checkpoint is None:
                model = build_model(run.model, processor, folder.processor, run.run.seed)
                export(
                    model, dict(model.named_parameters()), processor, run.model.family, folder.base
                )
    found = _digests(base_of(run, folder))
    if start.checkpoint is not None:
        check_base(origin, base_of(run, folder), found)
    with folder.writing():
        write_atomically(folder.base_files, json.dumps(found, indent=1) + "\n")


def check_base(origin: RunFolder, base: Path, found: dict[str, Any] | None = None) -> None:
    """Hold weights against those that a run began with.

    Raises:
        Findings: `base-changed`.
    """
    with reading(origin.base_files):
        written = json.loads(origin.base_files.read_text())
    found = _digests(base) if found is None else found
    different = sorted(
        name for name in written.keys() | found.keys() if written.get(name) != found.get(name)
    )
    if different:
        raise Findings(
            Diagnostic(
                "base-changed",
                f"{base} is not what this run began with: {', '.join(different)}",
                parameter="model.path",
            )
        )


def _digests(base: Path) -> dict[str, Any]:
    """Return the size and the XXH3 of each file that makes the model.

    transformers reads .bin files where there are no others.
    """
    weights = sorted(base.glob("*.safetensors")) or sorted(base.glob("pytorch_model*.bin"))
    found = {}
    for file in (file for file in (*weights, base / "config.json") if file.exists()):
        digest = xxhash.xxh3_128()
        with file.open("rb") as opened:
            while block := opened.read(BLOCK):
                digest.update(block)
        found[file.name] = {"bytes": file.stat().st_size, "xxh3": digest.hexdigest()}
    return found
