"""Runs of the engine train as `ddp` does, resume its checkpoints and it theirs, and export
the same.
"""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.engines.ranks import run_ranks
from tests.rows import mixed_rows, write_rows
from tests.runs import read_lines
from tests.training.test_engines import made_run, train_all

pytestmark = pytest.mark.full

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
SPREAD = ("engine.parallel.tensor=2", "engine.parallel.sequence=true")
STAGES = ("engine.parallel.pipeline=2",)
SHARED_OUT = ("engine.wrap_config.use_distributed_optimizer=true",)


def after(folder: Path, name: str) -> str:
    return f"checkpoint.resume={folder / name / 'checkpoints' / 'step-000004'}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps each, of rows with one image, two, or none;

    `A-B` began with A and continued with B after step 4.
    """
    made = tmp_path_factory.mktemp("megatron")
    write_rows(made / "rows.jsonl", mixed_rows(made, 16, text_only=(1, 2, 9)))
    for name, count in (("three", 3), ("one", 1)):
        write_rows(made / f"{name}.jsonl", mixed_rows(made, count))

    run_ranks(train_all, 1, [made_run(made, "straight", "ddp")])
    first = [
        made_run(made, "tp2", "megatron", *SPREAD),
        made_run(made, "dp2", "megatron", *SHARED_OUT),
        made_run(made, "ddp-tp2", "megatron", *SPREAD, after(made, "straight")),
        made_run(made, "pp2", "megatron", *STAGES, "model.gradient_checkpointing=true"),
    ]
    run_ranks(train_all, 2, first)
    run_ranks(train_all, 2, [made_run(made, "tp2-pp2", "megatron", *STAGES, after(made, "tp2"))])
    run_ranks(train_all, 1, [made_run(made, "tp2-ddp", "ddp", after(made, "tp2"))])
    return made


@pytest.fixture(scope="module")
def further(folder: Path) -> Path:
    """More of those that resume from what another has saved."""
    runs = [
        made_run(folder, "tp2-dp2", "megatron", *SHARED_OUT, after(folder, "tp2")),
        made_run(folder, "pp2-tp2", "megatron", *SPREAD, after(folder, "pp2")),
    ]
    run_ranks(train_all, 2, runs)
    run_ranks(train_all, 1, [made_run(folder, "dp2-ddp", "ddp", after(folder, "dp2"))])
    return folder


@pytest.mark.parametrize("name", ["tp2", "dp2", "pp2", "tp2-pp2", "ddp-tp2", "tp2-ddp"])
def test_a_run_trains_scores_and_exports_as_one_process_with_ddp(folder: Path, name: str) -> None:
    check(folder, name)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["tp2-dp2", "pp2-tp2", "dp2-ddp"])
def test_a_run_resumes_from_what_another_has_saved(further: Path, name: str) -> None:
    check(further, name)


def check(folder: Path, name: str) -> None:
    straight = {
        line["step"]: line
        for line in read_lines(folder / "straight/metrics.jsonl")
        if "loss" in line
    }
    ours = [line for line in read_lines(folder / name / "metrics.jsonl") if "loss" in line]
    assert [line["step"] for line in ours] == list(range(5 if "-" in name else 1, 9))
    for line in ours:
        theirs = straight[line["step"]]
        assert line["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert line["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
        counts = ("tokens", "supervised_tokens", "samples", "distinct_samples", "lr", "epoch")
        assert [line[count] for count in counts] == [theirs[count] for count in counts]
    results = [
        json.loads((folder / each / "result.json").read_text()) for each in ("straight", name)
    ]
    assert results[1]["test_nll"] == pytest.approx(results[0]["test_nll"], abs=1e-5)
    for key in ("ledger", "parameters", "test_exact_match"):
        assert results[1][key] == results[0][key]
    answers = [
        [line["answer"] for line in read_lines(folder / each / "predictions.jsonl")]
        for each in ("straight", name)
    ]
    assert answers[1] == answers[0]


@pytest.mark.parametrize("name", ["tp2", "dp2", "pp2", "ddp-tp2"])
def test_checkpoint_and_export_are_those_of_any_engine(folder: Path, name: str) -> None:
    ours, theirs = (folder / each / "checkpoints/step-000008" for each in (name, "straight"))
    for part in ("model", "optimizer"):
        mine, wanted = (
            load_file(ours / f"{part}.safetensors"),
            load_file(theirs / f"{part}.safetensors"),
        )
        assert {key: (value.shape, value.dtype) for key, value in mine.items()} == {
            key: (value.shape, value.dtype) for key, value in wanted.items()
        }
        assert max(float((mine[key] - wanted[key]).abs().max()) for key in wanted) <= 1e-4
    exported, straight = (folder / each / "export" for each in (name, "straight"))
    assert json.loads((exported / "config.json").read_text()) == json.loads(
        (straight / "config.json").read_text()
    )
    saved, kept = load_file(exported / "model.safetensors"), load_file(ours / "model.safetensors")
    assert saved.keys() == load_file(straight / "model.safetensors").keys()
    assert len(saved) == len(kept)
    assert sorted(float(value.double().sum()) for value in saved.values()) == sorted(
        float(value.double().sum()) for value in kept.values()
    )
