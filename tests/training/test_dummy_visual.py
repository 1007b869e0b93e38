"""model.dummy_visual:

what auto, always and never do in steps with and without images, on one process and on two.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engines.ranks import run_ranks
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, request, session
from vtool.data.loader import load_steps, micro_batches
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training.session import RunRequest
from vtool.training.step import train_step
from vtool.training.stop import StopRequest

ROWS, STEPS = 8, 1
TEXT_ONLY = {"images": (), "mixed": (1, 2, 5, 6, 7), "text": tuple(range(ROWS))}
ENGINES = ("ddp", "fsdp2")


def made_run(folder: Path, rows: str, engine: str, dummy: str) -> RunRequest:
    overrides = [
        messages(folder / f"{rows}.jsonl"),
        *(
            f"data.global_batch_size={ROWS}",
            "data.micro_batch_size=2",
            "data.image={min_pixels:784,max_pixels:784}",
        ),
        *(
            f"train={{steps:{STEPS},epochs:null}}",
            "optim.warmup_steps=0",
            f"run.dir={folder / rows / engine / dummy}",
        ),
        *(f"engine={engine}", f"model.dummy_visual={dummy}"),
    ]
    return request("rows", *overrides)


def taken(ranks: Ranks, made: dict[Any, RunRequest]) -> dict[Any, dict[str, Any]]:
    return {name: _steps(ranks, each) for name, each in made.items()}


def _steps(ranks: Ranks, made: RunRequest) -> dict[str, Any]:
    """The metrics of the steps, what has become of the tower, and what stopped them."""
    torch.set_num_threads(1)
    opened, progress = session(made, ranks)
    engine, kept = opened.engine, opened.ledgers["train"].kept

    def plan(step):
        return micro_batches(
            opened.plan, kept, step, ranks.rank, ranks.world, made.run.data.micro_batch_size
        )

    seen: dict[str, Any] = {"before": tower(engine), "losses": [], "finding": None}
    steps = range(1, STEPS + 1)
    for step, batches in zip(steps, load_steps(opened.rows["train"], steps, plan, 0), strict=True):
        try:
            metrics, _ = train_step(opened, progress, step, batches, StopRequest())
        except Findings as findings:
            seen["finding"] = findings.diagnostics[0]
            break
        seen["losses"].append(metrics["loss"])
    return seen | {"after": tower(engine)}


def tower(engine: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.iter_hf_weights() if "visual" in name}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dummy")
    for name, text_only in TEXT_ONLY.items():
        (made / name).mkdir()
        write_rows(made / f"{name}.jsonl", mixed_rows(made, ROWS, text_only))
    return made


@pytest.fixture(scope="module")
def two(folder: Path) -> list[dict[Any, dict[str, Any]]]:
    cases = [
        ("images", "auto"),
        ("images", "never"),
        ("mixed", "never"),
        ("text", "never"),
        ("text", "always"),
    ]
    made = {
        (rows, engine, dummy): made_run(folder, rows, engine, dummy)
        for rows, dummy in cases
        for engine in ENGINES
    }
    return run_ranks(taken, 2, made)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_never_stops_a_step_in_which_one_rank_would_wait_for_another(two: Any, engine: str) -> None:
    """Before it does, on every rank, with the rows that have no image."""
    for rank in two:
        seen = rank["mixed", engine, "never"]
        assert seen["finding"].rule == "micro-batch-without-image"
        assert seen["losses"] == []
        assert "step 1" in seen["finding"].message
        assert "mixed.jsonl:" in seen["finding"].message


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_never_trains_rows_that_are_alike_as_auto_does(two: Any, engine: str) -> None:
    for rank in two:
        assert rank["images", engine, "never"]["losses"] == rank["images", engine, "auto"]["losses"]
        text = rank["text", engine, "never"]
        assert len(text["losses"]) == STEPS
        assert all(
            torch.equal(text["before"][name], text["after"][name]) for name in text["before"]
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_in_one_process_nobody_waits(folder: Path, engine: str) -> None:
    auto, never = (
        _steps(Ranks(), made_run(folder, "mixed", engine, dummy)) for dummy in ("auto", "never")
    )
    assert len(never["losses"]) == STEPS
    assert never["losses"] == auto["losses"]
    assert all(torch.equal(never["after"][name], auto["after"][name]) for name in auto["after"])


@pytest.mark.parametrize("engine", ENGINES)
def test_always_decays_the_tower_in_a_step_of_text_alone(two: Any, engine: str) -> None:
    for rank in two:
        text = rank["text", engine, "always"]
        assert text["losses"] == rank["text", engine, "never"]["losses"]
        changed = {
            name
            for name in text["before"]
            if not torch.equal(text["before"][name], text["after"][name])
        }
        # what the optimizer decays
        assert changed == {name for name, tensor in text["before"].items() if tensor.dim() >= 2}
