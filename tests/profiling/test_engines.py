"""One traced step on each engine, on two ranks:

every part of it is in the trace, with what the ranks say to each other.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from tests.engines.ranks import run_ranks
from tests.profiling.runs import annotations, break_rules, inside, made_run, opened, write
from vtool.engines.ranks import Ranks
from vtool.training.session import RunRequest
from vtool.training.sft import train

pytestmark = pytest.mark.full

ENGINES = {
    "ddp": ("ddp",),
    "fsdp2": ("fsdp2",),
    "tensor": ("megatron", "engine.parallel={tensor:2,sequence:true}"),
    "pipeline": ("megatron", "engine.parallel={tensor:1,sequence:false,pipeline:2}"),
}


def train_all(ranks: Ranks, runs: Mapping[str, RunRequest]) -> list[str]:
    torch.set_num_threads(1)
    return [
        f"{name}: {one.rule}" for name, made in runs.items() for one in train(made, ranks).findings
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("engines")
    write(made)
    one_step = (
        "train.steps=2",
        "optim.warmup_steps=1",
        "profiler=torch",
        "profiler.profile_interval=[2,2]",
    )
    runs = {
        name: made_run(made, name, *one_step, *more, engine=engine)
        for name, (engine, *more) in ENGINES.items()
    }
    assert run_ranks(train_all, 2, runs) == [[], []]
    return made


@pytest.mark.parametrize("name", ENGINES)
def test_each_rank_has_its_trace_with_roles_and_collectives(folder: Path, name: str) -> None:
    for rank in range(2):
        trace = opened(folder / name / f"profile/rank-{rank}-steps-2-2.trace.json.gz")
        assert break_rules(trace) == []
        (step,) = annotations(trace, "ProfilerStep#")
        (whole,) = annotations(trace, "train_batch")
        assert step["name"] == "ProfilerStep#2"
        parts = annotations(trace, "data", "forward", "backward", "optimizer", "checkpoint")
        assert {part["name"] for part in parts} == {
            "data",
            "forward",
            "backward",
            "optimizer",
            "checkpoint",
        }
        assert all(inside(part, whole) and "cname" in part for part in parts)
        passes = [part["name"] for part in parts if part["name"] in ("forward", "backward")]
        micro_batches = 1 if name in ("ddp", "fsdp2") else 2
        assert passes.count("forward") == micro_batches
        assert passes.count("backward") >= micro_batches
        assert [
            event for event in trace["traceEvents"] if event["name"].startswith(("gloo:", "c10d::"))
        ], "collectives"


@pytest.mark.parametrize("name", ENGINES)
def test_the_summary_has_both_ranks_and_the_same_speed_of_all_rows(folder: Path, name: str) -> None:
    (interval,) = json.loads((folder / name / "profile/summary.json").read_text())["intervals"]
    assert (interval["world"], sorted(interval["ranks"])) == (2, ["0", "1"])
    rows = [one["steps"][0]["tokens"] for one in interval["ranks"].values()]
    assert rows[0] == rows[1] > 0
    assert all(one["flops_a_step"] > 0 for one in interval["ranks"].values())


@pytest.mark.parametrize("name", ENGINES)
def test_the_split_adds_up_to_the_step_that_the_trace_has_measured(folder: Path, name: str) -> None:
    (interval,) = json.loads((folder / name / "profile/summary.json").read_text())["intervals"]
    for rank in range(2):
        (whole,) = annotations(
            opened(folder / name / f"profile/rank-{rank}-steps-2-2.trace.json.gz"), "train_batch"
        )
        (step,) = interval["ranks"][str(rank)]["steps"]
        assert sum(step["split"].values()) == pytest.approx(whole["dur"] / 1e6, rel=0.03)
        assert min(step["split"].values()) >= 0
