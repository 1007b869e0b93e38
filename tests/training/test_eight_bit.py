"""AdamW with states of 8 bit: its numbers, its bytes, its checkpoints, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.engines.parity import base_model, made_run
from tests.engines.ranks import run_ranks
from tests.engines.state import optimizer_of
from tests.runs import read_lines, session, without_times
from vtool.config.expected import expected_settings
from vtool.config.load import examine
from vtool.config.readback import compare_readback
from vtool.config.schema import Optim
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training import eight_bit
from vtool.training.checkpoint import open_checkpoint
from vtool.training.eight_bit import AdamW8bit, block_of, bytes_of_means
from vtool.training.observe_run import observe_run
from vtool.training.optimizer import build_optimizer
from vtool.training.run_folder import RunFolder
from vtool.training.session import RunRequest, restore_checkpoint
from vtool.training.sft import train
from vtool.training.start import find_start

NARROW = "optim.states=8bit"
SHAPES = [(96, 256), (64, 342), (4096,), (16, 128), (300, 17)]
"""Two with blocks, of 256 and of 171; and three that keep float32."""


def run_of(folder: Path, engine: str, name: str, *more: str) -> RunRequest:
    return made_run(
        folder, engine, "float32", folder / "model", f"run.dir={folder / name}", NARROW, *more
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("eight")
    base_model(made)
    return made


def own_adamw(
    weight: torch.Tensor, gradients: list[torch.Tensor], rates: list[float], decay: float
) -> torch.Tensor:
    """Update in float64, as the paper says."""
    weight = weight.double()
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for count, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        first = 0.9 * first + 0.1 * gradient.double()
        second = 0.99 * second + 0.01 * gradient.double() ** 2
        step = (first / (1 - 0.9**count)) / ((second / (1 - 0.99**count)).sqrt() + 1e-8)
        weight = weight * (1 - rate * decay) - rate * step
    return weight


def test_updates_are_those_of_adamw_in_float64_but_for_the_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a rate that changes, decay of matrices alone, and updates by parts of a weight."""
    monkeypatch.setattr(eight_bit, "_AT_ONCE", 5000)
    random = torch.Generator().manual_seed(0)
    module = torch.nn.ParameterList(
        torch.nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES
    )
    before = [one.detach().clone() for one in module]
    settings = Optim(lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1, states="8bit")
    optimizer = build_optimizer(module, settings, lambda _: "language")
    rates = [1e-2 * (1 - step / 20) for step in range(20)]
    gradients: list[list[torch.Tensor]] = [[] for _ in SHAPES]
    for rate in rates:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["lr_factor"]
        for one, seen in zip(module, gradients, strict=True):
            one.grad = torch.randn(one.shape, generator=random) + 0.3
            seen.append(one.grad.clone())
        optimizer.step()
        if rate == rates[0]:  # what is rounded is left for the next step
            for one, old, seen in zip(module, before, gradients, strict=True):
                right = own_adamw(old, seen, rates[:1], 0.1 if one.dim() > 1 else 0.0)
                assert (one.double() - right).abs().max() < 1e-6
    for shape, one, old, seen in zip(SHAPES, module, before, gradients, strict=True):
        right = own_adamw(old, seen, rates, 0.1 if len(shape) > 1 else 0.0)
        apart = (one.double() - right).norm() / (right - old.double()).norm()
        rounded = block_of(shape) is not None
        assert rounded == (shape in SHAPES[:2])
        assert (1e-5 < apart < 0.05) if rounded else apart < 1e-5, (shape, float(apart))


@pytest.mark.parametrize("signed", [True, False])
def test_codes_stand_for_the_numbers_that_bitsandbytes_has(signed: bool) -> None:
    functional = pytest.importorskip("bitsandbytes.functional", reason="it is not installed")
    theirs = functional.create_dynamic_map(signed=signed)
    assert torch.equal(eight_bit.table_of(signed), theirs.float())


@pytest.mark.parametrize("signed", [True, False])
def test_a_code_is_that_of_the_nearest_number(signed: bool) -> None:
    """At what a code stands for, half-way between two, and a bit to each side of both."""
    table = eight_bit.table_of(signed)
    edges = torch.cat((table, (table[1:] + table[:-1]) / 2, torch.tensor([-1.0, 0.0, 1.0])))
    neighbours = [edges.nextafter(torch.full_like(edges, towards)) for towards in (-2.0, 2.0)]
    random = torch.rand(2**16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    numbers = torch.cat((edges, *neighbours, random, random**9)).clamp(-1, 1)
    codes = eight_bit.codes_of(numbers, table).long()
    assert codes.unique().numel() == 256
    exact = (numbers.double()[:, None] - table.double()).abs()
    apart = exact.gather(1, codes[:, None]).squeeze(1)
    # half-way between two, a difference in float32 is rounded
    assert (apart - exact.min(1).values).max() <= numbers.abs().max() * 2**-23
    assert torch.equal(eight_bit.codes_of(table, table).long(), torch.arange(256))


def test_the_live_states_have_the_bytes_that_a_plan_counts() -> None:
    module = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES)
    optimizer = AdamW8bit(module.parameters(), lr=1e-3)
    for one in module:
        one.grad = torch.ones_like(one)
    optimizer.step()
    for shape, one in zip(SHAPES, module, strict=True):
        state = dict(optimizer.state[one])
        state.pop("step")
        kept = sum(each.nbytes for each in state.values())
        assert kept == bytes_of_means(shape, one.numel())
        narrow = 2 * one.numel() * (1 + 4 / (block_of(shape) or 1))
        assert kept == (narrow if block_of(shape) else 8 * one.numel())


def test_the_setting_arrives(folder: Path) -> None:
    narrow, _ = session(run_of(folder, "ddp", "arrives"))
    wide, _ = session(run_of(folder, "ddp", "arrives-not", "optim.states=float32"))
    assert not compare_readback(expected_settings(narrow.run), observe_run(narrow))
    for asked, live, seen in ((narrow, wide, "float32"), (wide, narrow, "8bit")):
        differs = compare_readback(expected_settings(asked.run), observe_run(live))
        assert ("optim.states", seen) in {(one.parameter, one.seen) for one in differs}


def finish(ranks: Ranks, made: RunRequest, checkpoint: Path) -> dict[str, torch.Tensor]:
    """Train a run, and return the states that a checkpoint gives an engine that is new."""
    torch.set_num_threads(1)
    assert train(made, ranks).status == "finished"
    opened, _ = session(made, ranks)
    restore_checkpoint(opened.engine, checkpoint)
    return optimizer_of(opened.engine)


def saved(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of a run's last checkpoint."""
    found = open_checkpoint(run / "checkpoints/step-000005")
    return {
        f"{kind}.{name}": tensors[name]
        for kind, tensors in (("model", found.model), ("optimizer", found.optimizer))
        for name in tensors
    }


@pytest.mark.full
@pytest.mark.parametrize(("engine", "world"), [("ddp", 1), ("fsdp2", 2)])
def test_a_run_that_resumes_is_one_that_was_not_stopped_to_the_bit(
    folder: Path, engine: str, world: int
) -> None:
    """States are eight bits wide, saved and loaded again, on any engine."""
    more = ("checkpoint={every_steps:1,keep_last:9}", "device.threads=1")
    last = folder / engine / "checkpoints/step-000005"
    run_ranks(finish, world, run_of(folder, engine, engine, *more), last)
    after = f"checkpoint.resume={last.with_name('step-000002')}"
    resumed = run_of(folder, engine, f"{engine}-resumed", after, *more)
    everyone = run_ranks(finish, world, resumed, last)
    ours, theirs = saved(folder / engine), saved(folder / f"{engine}-resumed")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(one, theirs[name]) for name, one in ours.items())
    lines = [
        without_times(read_lines(folder / name / "metrics.jsonl"))
        for name in (engine, f"{engine}-resumed")
    ]
    assert lines[0][2:] == lines[1]
    codes = [name for name in ours if name.endswith("_codes")]
    assert codes
    for name in codes:
        assert ours[name].dtype == torch.uint8
        assert ours[name.replace("_codes", "_scale")].shape[0] == ours[name].shape[0]
        assert ours[name].unique().numel() > 16
    for states in everyone:
        assert {f"optimizer.{name}" for name in states} == {
            name for name in ours if name.startswith("optimizer.")
        }
        assert all(torch.equal(one, ours[f"optimizer.{name}"]) for name, one in states.items())


@pytest.mark.full
def test_a_run_resumes_with_another_engine_on_another_number_of_ranks(folder: Path) -> None:
    """One rank of ddp, two of fsdp2, and one again: each begins with the states that were saved.

    Gradients are summed in another order on two ranks, so that codes may differ by one from then
    on: losses are near, and the same to the bit only with the same ranks.
    """
    more = ("checkpoint={every_steps:1,keep_last:9}", "device.threads=1")
    straight = run_of(folder, "ddp", "straight", *more)
    last = folder / "straight/checkpoints/step-000005"
    run_ranks(finish, 1, straight, last)
    losses = [line["loss"] for line in read_lines(folder / "straight/metrics.jsonl")]
    begun = folder / "straight/checkpoints/step-000002"
    for engine, world, first in (("fsdp2", 2, 3), ("ddp", 1, 5)):
        name = f"on-{engine}"
        asked = run_of(folder, engine, name, *more, f"checkpoint.resume={begun}")
        kept = open_checkpoint(begun).optimizer
        for states in run_ranks(restored, world, asked, begun):
            assert states.keys() == set(kept)
            assert all(torch.equal(one, kept[key]) for key, one in states.items())
        run_ranks(finish, world, asked, folder / name / "checkpoints/step-000005")
        lines = read_lines(folder / name / "metrics.jsonl")
        assert lines[0]["step"] == first
        assert [line["loss"] for line in lines] == pytest.approx(losses[first - 1 :], rel=1e-4)
        begun = folder / name / "checkpoints/step-000004"


def restored(ranks: Ranks, made: RunRequest, checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return the states of a new engine that a checkpoint was given to."""
    opened, _ = session(made, ranks)
    restore_checkpoint(opened.engine, checkpoint)
    return optimizer_of(opened.engine)


@pytest.mark.full
def test_ranks_that_share_out_rows_round_as_one_rank_does() -> None:
    """Parameters have any number of rows, one or none among them."""
    for whole, *shares in run_ranks(shared_steps, 3):
        for one, shared in zip(whole, *shares, strict=True):
            assert torch.equal(one, shared)


def shared_steps(ranks: Ranks) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Weights and states of a whole weight, and of the same cut by rows, gathered."""
    mesh = init_device_mesh("cpu", (ranks.world,))
    random = torch.Generator().manual_seed(0)
    results: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for shape in ((97, 256), (2, 4096), (300, 17)):
        weight = torch.randn(shape, generator=random)
        gradients = [torch.randn(shape, generator=random) for _ in range(3)]
        for result, cut in zip(results, (False, True), strict=True):

            def placed(tensor: torch.Tensor, cut: bool = cut) -> Any:
                return distribute_tensor(tensor, mesh, [Shard(0)]) if cut else tensor.clone()

            parameter = torch.nn.Parameter(placed(weight))
            optimizer = AdamW8bit([parameter], lr=1e-2)
            for gradient in gradients:
                parameter.grad = placed(gradient)
                optimizer.step()
            for one in (parameter.detach(), *optimizer.state[parameter].values()):
                result.append(one.full_tensor() if cut and hasattr(one, "full_tensor") else one)
    return results


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("engine=megatron",), "engine=megatron updates by megatron-core's own Adam"),
        (("model.dtype=float64",), "model.dtype is float64"),
    ],
)
def test_what_does_not_go_together_is_refused(more: tuple[str, ...], reason: str) -> None:
    findings = [
        one for one in examine("digits", (NARROW, *more)).findings if one.severity == "error"
    ]
    (finding,) = findings
    assert (finding.rule, finding.parameter) == ("not-built-on-engine", "optim.states")
    assert reason in finding.message
    assert str(finding.help).startswith("set optim.states=float32")


@pytest.mark.full
def test_states_of_another_kind_are_not_gone_on_with(folder: Path) -> None:
    more = ("checkpoint={every_steps:1,keep_last:9}", "train.steps=1", "optim.warmup_steps=0")
    for begun, other in (("8bit", "float32"), ("float32", "8bit")):
        made = run_of(folder, "ddp", f"kind-{begun}", *more, f"optim.states={begun}")
        train(made, Ranks())
        folder_of_run = RunFolder(made.run.folder)
        another = run_of(folder, "ddp", f"kind-{begun}", *more, f"optim.states={other}")
        with pytest.raises(Findings) as raised:
            find_start(folder_of_run, another.run, another.effective)
        assert "optim.states" in str(raised.value.diagnostics[0])
        assert find_start(folder_of_run, made.run, made.effective).finished
