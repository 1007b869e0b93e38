"""The loop: what a step writes, what it counts, and what stops it."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from tests.engines.ranks import run_ranks
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, read_lines, request, session
from vtool.config.load import load_run
from vtool.data.collate import collate, filler
from vtool.data.loader import load_steps, micro_batches
from vtool.data.plan import Plan
from vtool.diagnostics import Findings
from vtool.engines.common import model_tensors, optimizer_tensors
from vtool.engines.ranks import Ranks
from vtool.training.finish import balance
from vtool.training.session import Progress, RunRequest, Session, count_steps
from vtool.training.sft import train
from vtool.training.step import train_step
from vtool.training.stop import StopRequest


def made_run(
    folder: Path, count: int = 10, text_only: tuple[int, ...] = (1,), *more: str
) -> RunRequest:
    rows = write_rows(folder / "rows.jsonl", mixed_rows(folder, count, text_only))
    overrides = [
        "data.global_batch_size=4",
        "data.micro_batch_size=2",
        "train={steps:5,epochs:null}",
        "optim.warmup_steps=0",
    ]
    overrides += [
        "data.image={min_pixels:784,max_pixels:784}",
        f"run.dir={folder / 'run'}",
        "evaluation.generate.max_new_tokens=3",
    ]
    return request("rows", messages(rows), *overrides, *more)


def take_step(opened: Session, progress: Progress, step: int) -> dict[str, Any]:
    kept, ranks = opened.ledgers["train"].kept, opened.ranks
    (batches,) = load_steps(
        opened.rows["train"],
        range(step, step + 1),
        lambda number: micro_batches(
            opened.plan, kept, number, ranks.rank, ranks.world, opened.run.data.micro_batch_size
        ),
        0,
    )
    metrics, signal = train_step(opened, progress, step, batches, StopRequest())
    assert signal is None
    return metrics


def test_each_step_writes_its_metrics_in_full(tmp_path: Path) -> None:
    made = made_run(tmp_path)
    train(made, Ranks())
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["epoch"] for line in lines] == [0, 0, 0, 1, 1]
    assert [line["samples"] for line in lines] == [4, 4, 2, 4, 4]
    assert [line["distinct_samples"] for line in lines] == [4, 8, 10, 10, 10]
    assert all(line["seconds"] > before["seconds"] for before, line in pairwise(lines))
    ledger = json.loads((tmp_path / "run" / "data.json").read_text())["train"]
    assert sum(line["supervised_tokens"] for line in lines[:3]) == ledger["supervised_tokens"]
    assert sum(line["tokens"] for line in lines[:3]) == ledger["tokens"]


def test_the_loss_is_the_mean_over_the_tokens_of_the_global_step(tmp_path: Path) -> None:
    """Against transformers' loss of each row alone, weighted by its tokens."""
    opened, progress = session(made_run(tmp_path))
    rows = opened.rows["train"]
    total = tokens = 0.0
    for index in opened.plan.step(1):
        sample = rows.sample(int(index))
        with torch.no_grad():
            total += (
                float(
                    opened.engine.module(
                        **collate([sample], rows.processor).inputs, labels=sample.labels[None]
                    ).loss
                )
                * sample.supervised
            )
        tokens += sample.supervised
    assert math.isclose(take_step(opened, progress, 1)["loss"], total / tokens, rel_tol=1e-5)


def state(opened: Session, part: str) -> dict[str, torch.Tensor]:
    """Weights and optimizer state as this rank has them: its share, where they are shared out."""
    both = model_tensors(opened.engine.module) | optimizer_tensors(
        opened.engine.module, opened.engine.optimizer
    )  # type: ignore[attr-defined]
    shares = {
        name: tensor.to_local() if isinstance(tensor, DTensor) else tensor
        for name, tensor in both.items()
    }
    return {name: tensor.clone() for name, tensor in shares.items() if part in name}


def tower_over_steps(ranks: Ranks, made: RunRequest) -> list[bool]:
    """Return whether the tower's weights and optimizer state changed, step by step."""
    torch.set_num_threads(1)
    opened, progress = session(made, ranks)
    changed = []
    for step in range(1, 6):
        before = state(opened, "visual")
        take_step(opened, progress, step)
        after = state(opened, "visual")
        changed.append(
            before.keys() != after.keys()
            or any(not torch.equal(before[name], after[name]) for name in before)
        )
        progress.step = step
    return changed


@pytest.mark.parametrize(
    ("engine", "world"),
    [("ddp", 1), ("ddp", 2), pytest.param("fsdp2", 2, marks=pytest.mark.full)],
)
def test_a_step_without_images_leaves_the_tower_and_its_optimizer_state_to_the_byte(
    tmp_path: Path, engine: str, world: int
) -> None:
    # one row of ten has an image
    made = made_run(tmp_path, 10, (0, 1, 2, 3, 4, 5, 6, 7, 8), f"engine={engine}")
    opened, _ = session(made)
    with_image = [bool(9 in opened.plan.step(step)) for step in range(1, 6)]
    assert True in with_image
    assert False in with_image
    for changed in run_ranks(tower_over_steps, world, made):
        assert changed == with_image


@pytest.mark.full
def test_views_of_the_buckets_train_the_same_with_and_without_images(tmp_path: Path) -> None:
    mixed = (0, 1, 2, 3, 4, 5, 6, 7, 8)  # steps with an image and steps without
    plain = run_ranks(losses_of, 2, made_run(tmp_path, 10, mixed))
    viewed = run_ranks(
        losses_of,
        2,
        made_run(
            tmp_path,
            10,
            mixed,
            "engine.gradient_as_bucket_view=true",
            f"run.dir={tmp_path / 'viewed'}",
        ),
    )
    assert plain == viewed


@pytest.mark.parametrize("world", [1, 2])
def test_text_alone_trains(tmp_path: Path, world: int) -> None:
    made = made_run(tmp_path, 10, tuple(range(10)))
    losses = run_ranks(losses_of, world, made)
    assert losses[0] == losses[-1]
    assert losses[0][-1] < losses[0][0]


def losses_of(ranks: Ranks, made: RunRequest) -> list[float]:
    torch.set_num_threads(1)
    opened, progress = session(made, ranks)
    losses = []
    for step in range(1, 6):
        losses.append(take_step(opened, progress, step)["loss"])
        progress.step = step
    return losses


def test_a_loss_that_is_not_finite_stops_before_the_weights_change_and_names_its_rows(
    tmp_path: Path,
) -> None:
    opened, progress = session(made_run(tmp_path))
    embedding = opened.engine.module.get_input_embeddings().weight
    with torch.no_grad():
        embedding[opened.processor.ids.end] = float("nan")
    before = state(opened, "")
    with pytest.raises(Findings) as caught:
        take_step(opened, progress, 1)
    (finding,) = caught.value.diagnostics
    assert finding.rule == "nonfinite-loss"
    assert "step 1" in finding.message
    assert "rows.jsonl:" in finding.message
    after = state(opened, "")
    assert before.keys() == after.keys()
    assert all(
        torch.equal(before[name].view(torch.int32), after[name].view(torch.int32))
        for name in before
    )  # NaN equals itself in its bits


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    opened, progress = session(made_run(tmp_path))
    parameter = next(opened.engine.module.parameters())
    parameter.register_hook(lambda gradient: gradient * float("inf"))
    before = state(opened, "")
    with pytest.raises(Findings) as caught:
        take_step(opened, progress, 1)
    assert caught.value.diagnostics[0].rule == "nonfinite-gradient"
    after = state(opened, "")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_step_without_supervised_tokens_stops_the_run(tmp_path: Path) -> None:
    opened, progress = session(made_run(tmp_path))
    rows = opened.rows["train"]
    batch = filler(rows[micro_batches(opened.plan, opened.ledgers["train"].kept, 1, 0, 1, 2)[0]])
    with pytest.raises(Findings) as caught:
        train_step(opened, progress, 1, [batch], StopRequest())
    assert caught.value.diagnostics[0].rule == "no-supervised-tokens"


def test_the_ledger_balances_after_any_number_of_steps(tmp_path: Path) -> None:
    opened, progress = session(made_run(tmp_path))
    for step in range(1, 6):
        take_step(opened, progress, step)
        progress.step = step
        assert balance(opened, progress)["samples"] == opened.plan.samples(step)


def test_a_row_seen_twice_and_another_skipped_is_a_mismatch(tmp_path: Path) -> None:
    opened, progress = session(made_run(tmp_path))
    for step in range(1, 4):
        take_step(opened, progress, step)
    progress.step = 3
    progress.visits[0] += 1
    progress.visits[1] -= 1
    with pytest.raises(Findings) as caught:
        balance(opened, progress)
    assert caught.value.diagnostics[0].rule == "ledger-mismatch"


def test_a_warm_up_longer_than_the_epochs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Findings) as caught:
        train(
            made_run(tmp_path, 10, (1,), "train={steps:null,epochs:2}", "optim.warmup_steps=6"),
            Ranks(),
        )
    assert caught.value.diagnostics[0].rule == "warmup-too-long"


def test_a_warm_up_that_is_too_long_is_reported_with_its_place(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("defaults: [digits]\ntrain: {steps: null, epochs: 2}\n")
    loaded = load_run(str(recipe), ["optim.warmup_steps=6"])
    with pytest.raises(Findings) as caught:
        count_steps(loaded.run, Plan(32, 32, 0), loaded.origins)
    (found,) = caught.value.diagnostics
    assert (found.rule, str(found.origin)) == ("warmup-too-long", "command line")
    assert found.help == "set optim.warmup_steps below 2, or raise train.epochs"


def test_rows_that_cannot_be_used_stop_the_run_before_it_writes_a_config(tmp_path: Path) -> None:
    made = made_run(tmp_path)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"messages"\n')
    with pytest.raises(Findings) as caught:
        train(made, Ranks())
    assert caught.value.diagnostics[0].rule == "broken-row"
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.full
def test_workers_change_nothing(tmp_path: Path) -> None:
    train(made_run(tmp_path, 10, (1,), "data.workers=0"), Ranks())
    train(made_run(tmp_path, 10, (1,), "data.workers=2", f"run.dir={tmp_path / 'other'}"), Ranks())
    one, other = (
        (tmp_path / name / "checkpoints/step-000005/model.safetensors").read_bytes()
        for name in ("run", "other")
    )
    assert one == other
