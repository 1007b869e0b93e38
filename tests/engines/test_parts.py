"""Adapters, frozen parts and parts with rates of their own, on ddp and fsdp2 (on megatron:

megatron/test_parts.py).
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.engines.parity import ROWS, base_model, made_run
from tests.engines.ranks import run_ranks
from tests.engines.state import model_of
from tests.rows import mixed_rows, write_rows
from tests.runs import gradients, messages, relative_difference, session
from vtool.data.loader import load_steps, micro_batches
from vtool.engines.megatron.groups import Groups
from vtool.engines.ranks import Ranks
from vtool.models.adapters import adapter_names, merge_adapter, saved_name
from vtool.training.schedule import learning_rate
from vtool.training.session import RunRequest
from vtool.training.step import train_step
from vtool.training.stop import StopRequest

pytestmark = pytest.mark.full

ENGINES = ("ddp", "fsdp2")
BOTH = pytest.mark.parametrize("engine", ENGINES)
SCENARIOS: dict[str, tuple[str, ...]] = {
    "adapters": ("lora={rank: 3, alpha: 5}",),
    "recomputed adapters": ("lora={rank: 2}", "model.gradient_checkpointing=true"),
    "adapters without the tower": (
        "lora={rank: 2, targets: [q_proj, mlp.2]}",
        "model.freeze.vision=true",
    ),
    "no tower": ("model.freeze.vision=true",),
    "the tower alone": ("model.freeze={projector: true, language: true}",),
    "three rates": (
        (
            "optim.groups={vision: {lr: 1e-4}, projector: {lr: 5e-3, weight_decay: 0.0}, language:"
            " {weight_decay: 0.5}}"
        ),
        "optim.weight_decay=0.1",
    ),
}


def seen_on(ranks: Ranks, made: dict[str, RunRequest]) -> dict[str, dict[str, Any]]:
    return {name: _seen(ranks, each) for name, each in made.items()}


def _seen(ranks: Ranks, made: RunRequest) -> dict[str, Any]:
    """Two steps of a run, in which an adapter's B is not 0 from the start."""
    torch.set_num_threads(1)
    opened, progress = session(made, ranks)
    engine, run, kept = opened.engine, opened.run, opened.ledgers["train"].kept
    if run.lora is not None:
        generator = torch.Generator().manual_seed(1)
        state = {
            name: (torch.randn(t.shape, generator=generator) * 0.1).to(t)
            for name, t in sorted(whole(engine, "only").items())
        }
        engine.load_state(state, {})
    wrapped = getattr(engine, "parallel", None)
    found: dict[str, Any] = {
        "before": whole(engine, "none") | whole(engine, "only"),
        "reduced": (
            wrapped._get_ddp_logging_data()["num_parameter_tensors"]
            if wrapped is not None
            else None
        ),
        "sharded": {
            saved_name(n)
            for n, p in engine.module.named_parameters()
            if isinstance(p, DTensor) and p.requires_grad
        },
        "merged": whole(engine, "merged"),
    }
    clip = engine.clip_gradient
    firsts: list[dict[str, Tensor]] = []

    def look_and_clip(largest: float | None) -> torch.Tensor:
        firsts.append(
            {saved_name(name): gradient for name, gradient in gradients(engine.module).items()}
        )
        return clip(largest)

    engine.clip_gradient = look_and_clip  # type: ignore[method-assign]

    def plan(step):
        return micro_batches(
            opened.plan, kept, step, ranks.rank, ranks.world, run.data.micro_batch_size
        )

    losses = []
    for step, batches in zip(
        (1, 2), load_steps(opened.rows["train"], range(1, 3), plan, 0), strict=True
    ):
        losses.append(train_step(opened, progress, step, batches, StopRequest())[0]["loss"])
    return found | {
        "losses": losses,
        "gradients": firsts[0],
        "after": whole(engine, "none") | whole(engine, "only"),
    }


def whole(engine: Any, adapter: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.iter_hf_weights(adapter)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("parts")
    base_model(made)
    return made


def requests(folder: Path, engine: str, dtype: str) -> dict[str, RunRequest]:
    made = {}
    for name, more in SCENARIOS.items():
        own = f"run.dir={folder / engine / dtype / name.replace(' ', '-')}"
        made[name] = made_run(folder, engine, dtype, folder / "model", own, *more)
    return made


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, Any]]:
    """One process, in float64."""
    return seen_on(Ranks(), requests(folder, "ddp", "float64"))


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, list[dict[str, dict[str, Any]]]]:
    """Two ranks of each engine, in float32."""
    return {
        engine: run_ranks(seen_on, 2, requests(folder, engine, "float32")) for engine in ENGINES
    }


@pytest.fixture(scope="module")
def variants(folder: Path) -> dict[str, list[dict[str, dict[str, Any]]]]:
    """The scenario `adapters` on two ranks of each engine: in bfloat16, and twice with dropout."""
    kinds = {
        "bfloat16": ("bfloat16", 0.0),
        "dropout": ("float32", 0.5),
        "dropout again": ("float32", 0.5),
    }

    def made(engine: str, name: str) -> RunRequest:
        dtype, dropout = kinds[name]
        own = f"run.dir={folder / engine / 'variants' / name.replace(' ', '-')}"
        return made_run(
            folder,
            engine,
            dtype,
            folder / "model",
            own,
            *SCENARIOS["adapters"],
            f"lora.dropout={dropout}",
        )

    return {
        engine: run_ranks(seen_on, 2, {name: made(engine, name) for name in kinds})
        for engine in ENGINES
    }


def declared(folder: Path, name: str) -> set[str]:
    """Return the parameters to be trained, by the names of transformers alone."""
    from safetensors import safe_open
    from transformers import Qwen2_5_VLForConditionalGeneration

    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder / "model", local_files_only=True
    )
    with safe_open(folder / "model/model.safetensors", "pt") as file:
        assert len(list(file.keys())) == len(list(model.parameters()))
    names = [parameter for parameter, _ in model.named_parameters()]
    tower = [
        parameter
        for parameter in names
        if parameter.startswith("model.visual.") and ".merger." not in parameter
    ]
    linear = [
        n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"
    ]
    adapters = {
        "adapters": linear,
        "recomputed adapters": linear,
        "adapters without the tower": [
            n for n in linear if n.endswith(".q_proj") or n == "model.visual.merger.mlp.2"
        ],
    }
    if name in adapters:
        return {one for stem in adapters[name] for one in adapter_names(f"{stem}.weight")}
    return {
        "no tower": set(names) - set(tower),
        "the tower alone": set(tower),
        "three rates": set(names),
    }[name]


@BOTH
@pytest.mark.parametrize("name", SCENARIOS)
def test_what_has_changed_after_two_steps_is_what_was_to_be_trained(
    folder: Path, two: Any, engine: str, name: str
) -> None:
    for seen in (rank[name] for rank in two[engine]):
        changed = {
            key
            for key, tensor in seen["before"].items()
            if not torch.equal(tensor, seen["after"][key])
        }
        assert changed == declared(folder, name)


@BOTH
@pytest.mark.parametrize("name", SCENARIOS)
def test_gradients_and_weights_are_those_of_one_process(
    alone: Any, two: Any, engine: str, name: str
) -> None:
    wanted, (ours, theirs) = alone[name], (rank[name] for rank in two[engine])
    assert relative_difference(ours["gradients"], wanted["gradients"]) <= 5e-6
    assert relative_difference(ours["gradients"], theirs["gradients"]) == 0
    assert (
        max(
            float((ours["after"][key] - wanted["after"][key]).abs().max())
            for key in wanted["after"]
        )
        <= 1e-4
    )
    assert all(torch.equal(ours["after"][key], theirs["after"][key]) for key in ours["after"])


@BOTH
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_engine_wraps_what_is_trained(folder: Path, two: Any, engine: str, name: str) -> None:
    """Adapters that go in after it would be reduced by nobody, and a base that is frozen after it
    would be waited for.
    """
    seen = two[engine][0][name]
    if engine == "ddp":
        assert seen["reduced"] == len(declared(folder, name))
    else:
        assert seen["sharded"] == declared(folder, name)


@BOTH
def test_in_bfloat16_adapters_train_in_float32_and_the_base_stays_to_the_bit(
    folder: Path, two: Any, variants: Any, engine: str
) -> None:
    seen, exact = variants[engine][0]["bfloat16"], two[engine][0]["adapters"]
    assert {tensor.dtype for tensor in seen["after"].values()} == {torch.float32}
    changed = {
        key for key, tensor in seen["before"].items() if not torch.equal(tensor, seen["after"][key])
    }
    assert changed == declared(folder, "adapters")
    # nothing is rounded on the way in
    assert all(torch.equal(seen["before"][key], exact["before"][key]) for key in exact["before"])
    assert 0 < relative_difference(seen["gradients"], exact["gradients"]) <= 5e-2


@BOTH
def test_dropout_of_adapters_changes_what_is_trained_and_is_the_same_again(
    two: Any, variants: Any, engine: str
) -> None:
    without = two[engine][0]["adapters"]
    for rank in variants[engine]:
        once, again = rank["dropout"], rank["dropout again"]
        assert all(
            abs(ours / theirs - 1) > 1e-4
            for ours, theirs in zip(once["losses"], without["losses"], strict=True)
        )
        assert relative_difference(once["gradients"], without["gradients"]) > 0.1
        assert once["losses"] == again["losses"]
        assert all(torch.equal(once["after"][key], again["after"][key]) for key in once["after"])


@BOTH
def test_merged_weights_are_base_and_scale_times_b_times_a(two: Any, engine: str) -> None:
    seen = two[engine][0]["adapters"]
    changed = set()
    for name, tensor in seen["merged"].items():
        a, b = adapter_names(name)
        if a in seen["before"]:
            wanted = seen["before"][name].double() + 5 / 3 * (
                seen["before"][b].double() @ seen["before"][a].double()
            )
            assert float((tensor.double() - wanted).abs().max()) <= 1e-6
            assert torch.equal(
                tensor,
                merge_adapter(seen["before"][name], seen["before"][a], seen["before"][b], 5 / 3),
            )
            changed.add(name)
        else:
            assert torch.equal(tensor, seen["before"][name])
    assert 2 * len(changed) == sum("lora_" in name for name in seen["before"])


def test_a_part_has_its_own_rate_and_decay(folder: Path) -> None:
    """A step of AdamW by its formulas:

    the first moves each element by lr · g / (|g| + eps), and decays matrices by lr · decay.
    """
    made = requests(folder, "ddp", "float64")["three rates"]
    opened, progress = session(made)
    run, kept = opened.run, opened.ledgers["train"].kept
    before = {
        name: parameter.detach().clone()
        for name, parameter in opened.engine.module.named_parameters()
    }
    plan = lambda step: micro_batches(opened.plan, kept, step, 0, 1, run.data.micro_batch_size)  # noqa: E731
    (batches,) = load_steps(opened.rows["train"], range(1, 2), plan, 0)
    clip, gradient = opened.engine.clip_gradient, {}

    def clip_and_look(largest: float | None) -> torch.Tensor:
        norm = clip(largest)
        gradient.update(gradients(opened.engine.module))
        return norm

    opened.engine.clip_gradient = clip_and_look  # type: ignore[method-assign]
    train_step(opened, progress, 1, batches, StopRequest())
    warm = learning_rate(run.optim, 1, opened.total_steps) / run.optim.lr
    assert warm < 1
    for name, parameter in opened.engine.module.named_parameters():
        part = "projector" if ".merger." in name else "vision" if ".visual." in name else "language"
        lr = {"vision": 1e-4, "projector": 5e-3, "language": run.optim.lr}[part] * warm
        decay = (
            {"vision": 0.1, "projector": 0.0, "language": 0.5}[part]
            if parameter.dim() >= 2
            else 0.0
        )
        g = gradient[name]
        wanted = before[name] * (1 - lr * decay) - lr * g / (g.abs() + run.optim.eps)
        assert torch.allclose(parameter, wanted, rtol=0, atol=1e-13), name


def gathered_before_each(ranks: Ranks, made: RunRequest) -> tuple[list[int], int]:
    """Count the collectives before each tensor of the stream, and the tensors of the model."""
    torch.set_num_threads(1)
    engine = session(made, ranks)[0].engine
    count = [0]
    gather, full = Groups.gather_tensor_shares, DTensor.full_tensor

    def counted(of: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            count[0] += 1
            return of(*arguments, **more)

        return call

    Groups.gather_tensor_shares, DTensor.full_tensor = counted(gather), counted(full)  # type: ignore[method-assign]
    try:
        seen = [count[0] for _ in engine.iter_hf_weights("merged")]
    finally:
        Groups.gather_tensor_shares, DTensor.full_tensor = gather, full  # type: ignore[method-assign]
    return seen, sum(1 for _ in engine.iter_hf_weights("none"))


@pytest.mark.parametrize("engine", ["fsdp2", "megatron"])
def test_each_tensor_is_gathered_when_it_is_asked_for(folder: Path, engine: str) -> None:
    """The weight and what is merged into it, and nothing ahead:

    the whole model is never in one place.
    """
    more = ["lora={rank: 2}", f"run.dir={folder / 'streamed' / engine}"]
    if engine == "megatron":
        pytest.importorskip("megatron.core", reason="megatron-core is not installed")
        more.append("engine.parallel.tensor=2")
    seen, tensors = run_ranks(
        gathered_before_each, 2, made_run(folder, engine, "float32", folder / "model", *more)
    )[0]
    assert len(seen) == tensors > 60
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) <= 3
    assert seen[-1] > tensors / 2


def state_around_a_step_without_images(ranks: Ranks, made: RunRequest) -> list[dict[str, Tensor]]:
    """Return the state before and after a step whose loss depends on no trained weight."""
    torch.set_num_threads(1)
    opened, progress = session(made, ranks)
    engine, kept = opened.engine, opened.ledgers["train"].kept
    before = {name: tensor.clone() for name, tensor in model_of(engine).items()}

    def plan(step):
        return micro_batches(
            opened.plan, kept, step, ranks.rank, ranks.world, opened.run.data.micro_batch_size
        )

    for step, batches in zip(
        (1, 2), load_steps(opened.rows["train"], range(1, 3), plan, 0), strict=True
    ):
        assert not any(batch.images for batch in batches)
        train_step(opened, progress, step, batches, StopRequest())
    assert all(isinstance(parameter, DTensor) for parameter in engine.module.parameters())
    return [before, model_of(engine)]


@pytest.mark.parametrize("freed", ["true", "false"])
def test_a_step_that_trains_nothing_leaves_the_weights_in_shares_and_to_the_bit(
    folder: Path, freed: str
) -> None:
    """No backward pass comes to free what the forward pass has gathered, rounded to bfloat16."""
    rows = write_rows(folder / "text.jsonl", mixed_rows(folder, ROWS, tuple(range(ROWS))))
    more = (
        messages(rows),
        "model.freeze={projector: true, language: true}",
        f"engine.reshard_after_forward={freed}",
    )
    made = made_run(
        folder,
        "fsdp2",
        "bfloat16",
        folder / "model",
        f"run.dir={folder / 'text-only' / freed}",
        *more,
    )
    before, after = run_ranks(state_around_a_step_without_images, 2, made)[0]
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
