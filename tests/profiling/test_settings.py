"""The profiler's live objects follow the settings that act once the loop has begun."""

from pathlib import Path

import pytest
import torch

from tests.profiling.runs import TORCH, made_run, write
from vtool.config.schema import Run
from vtool.engines.ranks import Ranks
from vtool.profiling.profiler import open_profiler
from vtool.profiling.tools import TorchTool


@pytest.fixture(autouse=True)
def _rows(tmp_path: Path) -> None:
    write(tmp_path)


def steps_of(run: Run, folder: Path, rank: int = 0) -> dict[str, list[int]]:
    """The steps in which a rank's tool runs, and those of which it keeps something."""
    ranks = Ranks(rank)  # alone: nothing is asked of a second one
    running, kept = [], []
    with open_profiler(run, ranks, folder, 0, 6, lambda _: None) as profiler:
        for step in range(1, 7):
            span = profiler.begin(step)
            tool = profiler.tool
            if isinstance(tool, TorchTool):
                running.append(step)
                if "RECORD" in str(tool.profile.current_action):
                    kept.append(step)
            with span("train_batch"):
                torch.ones(2) + 1
            profiler.end({"tokens": 1, "samples": 1})
    return {"running": running, "kept": kept}


@pytest.mark.parametrize(("warmup", "running"), [(0, [3, 4]), (1, [2, 3, 4]), (2, [1, 2, 3, 4])])
def test_the_tool_runs_in_its_warm_up_and_keeps_the_interval(
    tmp_path: Path, warmup: int, running: list[int]
) -> None:
    run = made_run(tmp_path, "any", *TORCH, f"profiler.warmup={warmup}").run
    assert steps_of(run, tmp_path) == {"running": running, "kept": [3, 4]}


def test_only_the_ranks_that_are_asked_for_record(tmp_path: Path) -> None:
    run = made_run(tmp_path, "any", *TORCH, "profiler.ranks=[0]").run
    assert steps_of(run, tmp_path)["kept"] == [3, 4]
    assert steps_of(run, tmp_path, rank=1) == {"running": [], "kept": []}


@pytest.mark.parametrize("name", ["shapes", "stacks", "flops", "memory"])
@pytest.mark.parametrize("value", [True, False])
def test_torchs_profiler_has_what_is_asked(tmp_path: Path, name: str, value: bool) -> None:
    settings = made_run(
        tmp_path, "any", *TORCH, f"profiler.record.{name}={str(value).lower()}"
    ).run.profiler
    tool = TorchTool(settings, torch.device("cpu"))
    tool.start(2)
    live = tool.profile
    assert {
        "shapes": live.record_shapes,
        "stacks": live.with_stack,
        "flops": live.with_flops,
        "memory": live.profile_memory,
    }[name] is value
    tool.stop()
