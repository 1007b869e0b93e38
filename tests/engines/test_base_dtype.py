"""Adapters over a base in bfloat16: the bits of one in float32, in half of its memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.config.test_lora import found
from tests.engines.parity import base_model, made_run
from tests.engines.ranks import run_ranks
from tests.runs import session
from vtool.config.expected import expected_settings
from vtool.config.readback import compare_readback
from vtool.data.loader import load_steps
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training.observe_run import observe_run
from vtool.training.session import RunRequest
from vtool.training.step import train_step
from vtool.training.stop import StopRequest

DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model's weights in float32, and another with them rounded to bfloat16."""
    made = tmp_path_factory.mktemp("base")
    model = base_model(made)
    narrow = made / "narrow"
    narrow.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (narrow / file.name).write_bytes(file.read_bytes())
    tensors = {name: one.bfloat16() for name, one in load_file(model / "model.safetensors").items()}
    save_file(tensors, narrow / "model.safetensors", metadata={"format": "pt"})
    return made


def run_of(folder: Path, engine: str, base: str, model: str = "narrow") -> RunRequest:
    return made_run(
        folder,
        engine,
        "bfloat16",
        folder / model,
        f"lora={{rank:2,base_dtype:{base}}}",
        "model.freeze.vision=true",
        f"run.dir={folder}/{engine}-{base}-{model}",
    )


def two_steps(ranks: Ranks, runs: dict[str, RunRequest]) -> dict[str, dict[str, Any]]:
    torch.set_num_threads(1)
    return {name: _two_steps(ranks, run) for name, run in runs.items()}


def _two_steps(ranks: Ranks, run: RunRequest) -> dict[str, Any]:
    opened, progress = session(run, ranks)
    engine, clip = opened.engine, opened.engine.clip_gradient
    gradients: list[dict[str, torch.Tensor]] = []

    def look_and_clip(largest: float | None) -> torch.Tensor:
        gradients.append(engine.gradients())
        return clip(largest)

    engine.clip_gradient = look_and_clip  # type: ignore[method-assign]
    steps = load_steps(opened.rows["train"], range(1, 3), opened.micro_batches, 0)
    losses = [
        train_step(opened, progress, number, batches, StopRequest())[0]["loss"]
        for number, batches in enumerate(steps, 1)
    ]
    observed = observe_run(opened)
    frozen = [one for one in engine.module.parameters() if not one.requires_grad]
    return {
        "losses": losses,
        "gradients": gradients,
        "merged": {name: one.clone() for name, one in engine.iter_hf_weights("merged")},
        "differs": [
            one.parameter for one in compare_readback(expected_settings(run.run), observed)
        ],
        "base": {str(one.value) for one in observed if one.name == "lora.base_dtype"},
        "frozen": sum(one.numel() * one.element_size() for one in frozen),
        "narrow": sum(one.numel() for one in frozen if one.dtype == torch.bfloat16),
        "trained": {one.dtype for one in engine.module.parameters() if one.requires_grad},
    }


@pytest.mark.full
@pytest.mark.parametrize(("engine", "world"), [("ddp", 1), ("ddp", 2), ("fsdp2", 2)])
def test_loss_gradients_and_merged_weights_are_those_of_a_float32_base_to_the_bit(
    folder: Path, engine: str, world: int
) -> None:
    runs = {base: run_of(folder, engine, base) for base in DTYPES}
    by_rank = run_ranks(two_steps, world, runs) if world > 1 else [two_steps(Ranks(), runs)]
    for number, rank in enumerate(by_rank):
        wide, narrow = rank["float32"], rank["bfloat16"]
        assert (wide["base"], narrow["base"]) == ({"float32"}, {"bfloat16"})
        assert not wide["differs"]
        assert not narrow["differs"]
        assert wide["losses"] == narrow["losses"]
        assert len(wide["gradients"]) == 2
        for step, other in zip(wide["gradients"], narrow["gradients"], strict=True):
            assert step.keys() == other.keys()
            assert any(one.any() for one in step.values()) == (number == 0)  # which has them
            assert all(torch.equal(step[name], other[name]) for name in step)
        assert wide["merged"].keys() == narrow["merged"].keys()
        for name, one in wide["merged"].items():
            assert narrow["merged"][name].dtype == one.dtype == torch.float32
            assert torch.equal(narrow["merged"][name], one), name
        assert narrow["trained"] == {torch.float32}
        assert narrow["frozen"] == wide["frozen"] - 2 * narrow["narrow"]
        assert narrow["narrow"] > 0.5 * (wide["frozen"] / 4)


def test_weights_that_would_be_rounded_are_refused(folder: Path) -> None:
    with pytest.raises(Findings) as raised:
        session(run_of(folder, "ddp", "bfloat16", "model"))
    (finding,) = raised.value.diagnostics
    assert (finding.rule, finding.parameter) == ("base-rounded", "lora.base_dtype")
    assert "is float32" in finding.message


@pytest.mark.parametrize(
    "settings",
    [("model.dtype=float32",), ("engine=megatron",), ("lora.dora=true",), ("model.dtype=float64",)],
)
def test_what_has_no_narrow_base_is_refused_by_name(settings: tuple[str, ...]) -> None:
    asked = ("model.dtype=bfloat16", "lora.base_dtype=bfloat16")
    refused = ("not-built-on-engine", "error", "lora.base_dtype")
    assert refused in found(*asked, *settings)
    assert refused not in found(*asked)
