"""Ranks that see other model folders are reported, on every engine, before any weight is mixed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engines.parity import base_model, made_run
from tests.engines.ranks import run_ranks
from tests.runs import session
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.training.session import RunRequest

WorkerResult = list[tuple[str, str]]


def refusals(ranks: Ranks, made: list[tuple[RunRequest, RunRequest]]) -> list[WorkerResult]:
    """Return why each run is refused, whose ranks are given one of two requests each."""
    return [_refusals(ranks, both[ranks.rank]) for both in made]


def _refusals(ranks: Ranks, made: RunRequest) -> WorkerResult:
    torch.set_num_threads(1)
    try:
        session(made, ranks)
    except SharedFindings as findings:
        return [(finding.rule, finding.message) for finding in findings.diagnostics]
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model`;

    a `copy`; `other-weights`, of which two elements of one tensor have changed places;
    `other-config`.
    """
    made = tmp_path_factory.mktemp("agreement")
    base_model(made)
    for name in ("copy", "other-weights", "other-config"):
        shutil.copytree(made / "model", made / name)
    tensors = load_file(made / "model/model.safetensors")
    norm = next(name for name in tensors if name.endswith("merger.mlp.0.weight"))
    tensors[norm][0, :2] = tensors[norm][0, :2].flip(0)
    save_file(tensors, made / "other-weights/model.safetensors", metadata={"format": "pt"})
    config = json.loads((made / "model/config.json").read_text())
    config["text_config"]["rms_norm_eps"] *= 2
    (made / "other-config/config.json").write_text(json.dumps(config))
    return made


def requests(folder: Path, engine: str, other: str, *more: str) -> tuple[RunRequest, RunRequest]:
    own = f"run.dir={folder / 'runs' / '-'.join((engine, other, *map(str, map(len, more))))}"
    first, second = (
        made_run(folder, engine, "float32", folder / model, own, *more)
        for model in ("model", other)
    )
    return first, second


@pytest.mark.parametrize("engine", ["ddp", pytest.param("fsdp2", marks=pytest.mark.full)])
def test_ranks_of_other_folders_are_named_by_every_rank(folder: Path, engine: str) -> None:
    lora = "lora={rank: 2}"
    made = [requests(folder, engine, other) for other in ("copy", "other-weights", "other-config")]
    made += [requests(folder, engine, other, lora) for other in ("copy", "other-weights")]
    weights = [("ranks-differ", "rank 1 built the model of other weights than rank 0")]
    config = [("ranks-differ", "rank 1 built the model of other config.json than rank 0")]
    for rank in run_ranks(refusals, 2, made):
        assert rank == [[], weights, config, [], weights]
