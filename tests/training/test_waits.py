"""Places in a step that wait for the device: one of ours, and those of transformers' classes."""

from pathlib import Path

import pytest
import torch

from tests.engines.ranks import run_ranks
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, request, session
from tests.training.waits import waits
from vtool.data.loader import load_steps
from vtool.engines.ranks import Ranks
from vtool.training.step import train_step
from vtool.training.stop import StopRequest

CPU = torch.device("cpu")


def count(ranks: Ranks, folder: Path, *settings: str) -> dict[str, int]:
    """The waits of the second step of a run, by line."""
    given = ["model={family: qwen2_5_vl, size: tiny}", "optim.lr=1e-3", "train.steps=2"]
    given += ["data.global_batch_size=8", messages(folder / "rows.jsonl"), *settings]
    opened, progress = session(request("rows", *given, f"run.dir={folder / 'run'}"), ranks)
    steps = load_steps(
        opened.rows["train"], range(1, 3), opened.micro_batches, 0, device=ranks.device
    )
    for step, batches in enumerate(steps, 1):
        with waits(ranks.device, [progress.visits]) as found:
            train_step(opened, progress, step, batches, StopRequest())
    return dict(found)


def rows_in(folder: Path) -> None:
    write_rows(folder / "rows.jsonl", mixed_rows(folder, 16, (1, 4)))


@pytest.mark.parametrize(
    "settings",
    [
        ("data.micro_batch_size=4",),
        ("data.packing=token_budget", "data.micro_batch_tokens=256"),
        ("data.packing=token_budget", "data.micro_batch_tokens=256", "engine=fsdp2"),
    ],
)
@pytest.mark.usefixtures("no_process_group")
def test_one_place_of_a_step_waits_for_the_device(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    rows_in(tmp_path)
    found = count(Ranks(), tmp_path, *settings)
    ours = [(place, times) for place, times in found.items() if place.startswith("vtool/")]
    assert [times for _, times in ours] == [1]
    assert ours[0][0].startswith("vtool/training/step.py")


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
@pytest.mark.usefixtures("no_process_group")
def test_cuda_says_the_same(tmp_path: Path, gpu: torch.device, engine: str) -> None:
    rows_in(tmp_path)
    settings = ("data.packing=token_budget", "data.micro_batch_tokens=256", f"engine={engine}")
    found = count(Ranks(device=gpu), tmp_path, *settings)
    ours = [(place, times) for place, times in found.items() if place.startswith("vtool/")]
    assert [times for _, times in ours] == [1]
    assert ours[0][0].startswith("vtool/training/step.py")


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
@pytest.mark.full
def test_with_several_ranks_what_they_say_to_each_other_is_in_the_cpus_memory(
    tmp_path: Path, engine: str
) -> None:
    rows_in(tmp_path)
    for found in run_ranks(count, 2, tmp_path, f"engine={engine}", "data.micro_batch_size=4"):
        ours = {place for place in found if place.startswith("vtool/")}
        assert {place.partition(":")[0] for place in ours} == {
            "vtool/training/step.py",
            "vtool/engines/ranks.py",
        }


def test_what_would_wait_is_counted_and_what_would_not_is_not() -> None:
    values, mask = torch.arange(4.0), torch.tensor([True, False, True, True])
    quiet = [
        lambda: values.sum() + 1,
        lambda: values.where(mask, 0),
        lambda: values[torch.tensor([0, 2])],
        lambda: values.to(torch.float64),
        lambda: values.masked_fill(mask, 0),
    ]
    loud = [
        lambda: values.sum().item(),
        lambda: bool(mask.any()),
        values.tolist,
        values.numpy,
        lambda: values[mask],
        mask.nonzero,
        values.cpu,
        lambda: torch.equal(values, values),
    ]
    for work in quiet:
        with waits(CPU) as found:
            work()
        assert not found
    for work in loud:
        with waits(CPU) as found:
            work()
        assert sum(found.values()) == 1
        assert "test_waits.py" in next(iter(found))
