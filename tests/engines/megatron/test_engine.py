"""Each way of spreading a model trains it as one process in float64 does, and resumes what any
other has saved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.engines.megatron.tiny import IMAGE, tiny_model
from tests.engines.ranks import run_ranks
from tests.engines.state import model_of, optimizer_of, state_of
from tests.runs import relative_difference
from vtool.config.schema import Optim
from vtool.config.schema.megatron import Megatron as Settings
from vtool.engines.megatron.engine import MegatronEngine
from vtool.engines.ranks import CPU, Ranks, SharedFindings
from vtool.families.family import load_family
from vtool.models.dummy_visual import dummy_visual_forward

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
QWEN = load_family("qwen2_5_vl")
OPTIM = Optim(lr=1e-3, weight_decay=0.1, clip_norm=1.0)
TEXT_STEP = 2  # of steps 0 to 4, the one without any image
DISTRIBUTED = {"use_distributed_optimizer": True}
OVERLAP = {"overlap_grad_reduce": True, "bucket_size": 5000}
CASES: dict[str, dict[str, Any]] = {
    "dp2": {},
    "dp2, reduced while it goes on": {"ddp_config": OVERLAP},
    "dp2, divided in the collective": {"ddp_config": {"average_in_collective": True}},
    "dp2, distributed optimizer": {"wrap_config": DISTRIBUTED},
    "dp2, distributed optimizer, all overlapped": {
        "wrap_config": DISTRIBUTED,
        "ddp_config": {**OVERLAP, "overlap_param_gather": True},
    },
    "tp2": {"parallel": {"tensor": 2}},
    "tp2+sp": {"parallel": {"tensor": 2, "sequence": True}},
    "tp2+sp, distributed optimizer": {
        "parallel": {"tensor": 2, "sequence": True},
        "wrap_config": DISTRIBUTED,
    },
    "pp2": {"parallel": {"pipeline": 2}},
    "pp2, divided in the collective": {
        "parallel": {"pipeline": 2},
        "ddp_config": {"average_in_collective": True},
    },
    "pp2, distributed optimizer, all overlapped": {
        "parallel": {"pipeline": 2},
        "wrap_config": DISTRIBUTED,
        "ddp_config": {**OVERLAP, "overlap_param_gather": True},
    },
}


# Each dimension and each setting once, in pairs; `make test-all` has each way with each of its
# settings, and the rest take their turn in `make soak`.
PAIRS = ("dp2, distributed optimizer, all overlapped", "tp2+sp, distributed optimizer", "pp2")
TIED = (
    "dp2, divided in the collective",
    "tp2",
    "pp2, distributed optimizer, all overlapped",
)
# With a head of its own besides the embedding.
UNTIED = ("dp2, distributed optimizer, all overlapped", "tp2+sp", "pp2")


@dataclass
class Row:
    inputs: dict[str, Tensor]
    targets: Tensor  # [1, S]: the token after each; −100 where none is asked for


@dataclass
class Trained:
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    first: dict[str, Tensor] = field(default_factory=dict)
    """The gradients of step 0."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    text_step: dict[str, bool] = field(default_factory=dict)
    resumed: list[float] = field(default_factory=list)
    spread: float = 0.0
    """The largest difference between the ranks' copies of the same weights."""


def rows_of(step: int) -> list[Row]:
    """Four rows of one length, of unequal numbers of supervised tokens;

    the second has none; the third has no image.
    """
    rows = []
    for number, supervised in enumerate((5, 0, 2, 11)):
        generator = torch.Generator().manual_seed(10 * step + number)
        ids = torch.randint(2, 150, (1, 17), generator=generator)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if number != 2 and step != TEXT_STEP:
            ids[0, 1:9] = torch.tensor([153, *[IMAGE] * 6, 154])
            inputs |= {
                "pixel_values": torch.randn(24, 1176, generator=generator),
                "image_grid_thw": torch.tensor([[1, 4, 6]]),
            }
        inputs["mm_token_type_ids"] = (ids == IMAGE).long()
        targets = ids.roll(-1, 1)
        targets[:, : 16 - supervised] = -100
        targets[:, -1] = -100
        rows.append(Row(inputs, targets))
    return rows


SUPERVISED = 18


def nll(model: Any, row: Row) -> Tensor:
    logits = model(**row.inputs, use_cache=False).logits
    return cross_entropy(logits[0].float(), row.targets[0], ignore_index=-100, reduction="sum")


def reference(tied: bool, family: str = "qwen2_5_vl") -> Trained:
    """One process, float64, torch's own AdamW and clipping; the loss by its definition."""
    model = tiny_model(tied=tied, dtype=torch.float64, family=family).train()
    named = dict(model.named_parameters())
    decayed = [parameter for parameter in named.values() if parameter.dim() >= 2]
    others = [parameter for parameter in named.values() if parameter.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=1e-3,
        foreach=False,
    )
    trained = Trained()
    train_alone(model, named, optimizer, trained)
    return trained


def train_alone(
    model: Any, named: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, trained: Any
) -> None:
    """Five steps of a float64 model in this process."""
    for step in range(5):
        total = 0.0
        for row in rows_of(step):
            inputs = {
                name: tensor.double() if tensor.is_floating_point() else tensor
                for name, tensor in row.inputs.items()
            }
            logits = model(**inputs, use_cache=False).logits[0]
            wanted = (row.targets[0] != -100).nonzero().flatten()
            loss = (
                -torch.log_softmax(logits[wanted], -1)[
                    torch.arange(len(wanted)), row.targets[0, wanted]
                ].sum()
                / SUPERVISED
            )
            # without an image a tower that is trained alone has no part in it
            if loss.requires_grad:
                loss.backward()
            total += loss.item()
        trained.losses.append(total)
        if step == 0:
            trained.first = {
                name: parameter.grad.clone()
                for name, parameter in named.items()
                if parameter.grad is not None
            }
        trained.norms.append(torch.nn.utils.clip_grad_norm_(named.values(), 1.0).item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    trained.weights = {name: parameter.detach().clone() for name, parameter in named.items()}


def take_step(engine: MegatronEngine, step: int) -> float:
    """Forwards and backwards of one global step; its loss."""
    rows = rows_of(step)[engine.data.rank :: engine.data.world]
    # With no image anywhere the tower is left out; else a row without one still runs it, as the
    # training loop has it do.
    every = step != TEXT_STEP

    def with_dummy(model: Any, row: Row) -> Tensor:
        if not every or "pixel_values" in row.inputs:
            return nll(model, row)
        with dummy_visual_forward(QWEN, model):
            return nll(model, row)

    sums = engine.forward_backward(rows, with_dummy, SUPERVISED, every_parameter=every)
    return (
        sum(report[0] for report in engine.data.all_gather([float(sums.double().sum())]))
        / SUPERVISED
    )


def build(
    case: dict[str, Any], ranks: Ranks, tied: bool, dtype: torch.dtype = torch.float32
) -> MegatronEngine:
    return MegatronEngine(
        tiny_model(tied=tied).train(),
        Settings(kind="megatron", **case),
        OPTIM,
        ranks,
        dtype,
        QWEN.component,
    )


def copied(engine: MegatronEngine) -> list[Tensor]:
    """Return the parameters that two ranks have the same values of.

    Data parallel ones of everything, tensor parallel ones of what is not cut (norms, and the
    tower), stages of a tied embedding.
    """
    parameters = list(engine.module.parameters())
    if engine.stage.ranks.world == 2:
        return [
            parameter for parameter in parameters if getattr(parameter, "shared_embedding", False)
        ]
    return [
        one
        for one in parameters
        if engine.data.world == 2 or not getattr(one, "tensor_model_parallel", False)
    ]


def train_all(ranks: Ranks, cases: dict[str, dict[str, Any]], tied: bool) -> dict[str, Trained]:
    found = {}
    saved: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
    for name, case in cases.items():
        trained = found[name] = Trained()
        if saved is not None:  # by the case before this one, after three steps
            other = build(case, ranks, tied)
            other.load_state(*saved)
            for step in (3, 4):
                trained.resumed.append(take_step(other, step))
                trained.resumed.append(float(other.clip_gradient(OPTIM.clip_norm)))
                other.optimizer_step(OPTIM.lr)
        engine = build(case, ranks, tied)
        for step in range(5):
            before = state_of(engine) if step == TEXT_STEP else None
            trained.losses.append(take_step(engine, step))
            if step == 0:
                trained.first = engine.gradients()
            trained.norms.append(float(engine.clip_gradient(OPTIM.clip_norm)))
            engine.optimizer_step(OPTIM.lr)
            if before is not None:
                after = state_of(engine)
                for kind, one, two in zip(("weights", "state"), before, after, strict=True):
                    tower = [key for key in two if ".visual." in key]
                    trained.text_step[f"tower {kind} kept"] = bool(tower) and all(
                        torch.equal(one[key], two[key]) for key in tower
                    )
                    rest = [key for key in two if ".visual." not in key]
                    trained.text_step[f"other {kind} moved"] = not any(
                        torch.equal(one[key], two[key]) for key in rest
                    )
                saved = tuple(ranks.all_gather_objects(after)[0])
            with engine.evaluating():
                mine = torch.cat(
                    [
                        torch.zeros(1),
                        *(parameter.detach().flatten() for parameter in copied(engine)),
                    ]
                )
            copies = [mine.clone(), mine.clone()]
            torch.distributed.all_gather(copies, mine)
            trained.spread = max(trained.spread, float((copies[0] - copies[1]).abs().max()))
        trained.weights = model_of(engine)
    return found


@pytest.mark.parametrize(
    ("tied", "names"),
    [
        (True, PAIRS),
        pytest.param(True, TIED, marks=pytest.mark.full),
        pytest.param(False, UNTIED, marks=pytest.mark.full),
        pytest.param(
            True,
            tuple(name for name in CASES if name not in (*PAIRS, *TIED)),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            False, tuple(name for name in CASES if name not in UNTIED), marks=pytest.mark.soak
        ),
    ],
    ids=["in pairs", "tied", "untied", "tied, the rest", "untied, the rest"],
)
def test_training_is_that_of_one_process(tied: bool, names: tuple[str, ...]) -> None:
    wanted = reference(tied)
    found = run_ranks(train_all, 2, {name: CASES[name] for name in names}, tied)[0]
    resumed = [number for step in (3, 4) for number in (wanted.losses[step], wanted.norms[step])]
    for name, trained in found.items():
        first = relative_difference(
            {key: tensor.double() for key, tensor in trained.first.items()}, wanted.first
        )
        weights = relative_difference(
            {key: tensor.double() for key, tensor in trained.weights.items()}, wanted.weights
        )
        print(f"{name}: gradient {first:.1e}, weights {weights:.1e}, spread {trained.spread:.0e}")
        assert first <= 5e-6, name
        assert trained.losses == pytest.approx(wanted.losses, rel=1e-5), name
        assert trained.norms == pytest.approx(wanted.norms, rel=1e-5), name
        assert weights <= 1e-4, name
        assert trained.spread == 0, name
        if trained.resumed:
            assert trained.resumed == pytest.approx(resumed, rel=1e-5), name
        assert len(trained.text_step) == 4, name
        assert all(trained.text_step.values()), (name, trained.text_step)
    assert min(wanted.norms) > 1  # so that every step is clipped


def steps_of_qwen2_vl(ranks: Ranks) -> dict[str, Trained]:
    found = {}
    for name in ("dp2, distributed optimizer", "tp2+sp", "pp2"):
        trained, model = (
            found.setdefault(name, Trained()),
            tiny_model(tied=True, family="qwen2_vl").train(),
        )
        engine = MegatronEngine(
            model,
            Settings(kind="megatron", **CASES[name]),
            OPTIM,
            ranks,
            torch.float32,
            load_family("qwen2_vl").component,
        )
        for step in range(5):
            trained.losses.append(take_step(engine, step))
            if step == 0:
                trained.first = engine.gradients()
            trained.norms.append(float(engine.clip_gradient(OPTIM.clip_norm)))
            engine.optimizer_step(OPTIM.lr)
        trained.weights = model_of(engine)
    return found


@pytest.mark.full
def test_qwen2_vl_trains_as_in_one_process() -> None:
    wanted = reference(True, "qwen2_vl")
    for name, trained in run_ranks(steps_of_qwen2_vl, 2)[0].items():
        first = relative_difference(
            {key: tensor.double() for key, tensor in trained.first.items()}, wanted.first
        )
        weights = relative_difference(
            {key: tensor.double() for key, tensor in trained.weights.items()}, wanted.weights
        )
        print(f"{name}: gradient {first:.1e}, weights {weights:.1e}")
        assert first <= 5e-6, name
        assert trained.losses == pytest.approx(wanted.losses, rel=1e-5), name
        assert trained.norms == pytest.approx(wanted.norms, rel=1e-5), name
        assert weights <= 1e-4, name


FOUR = {
    "pp2×tp2+sp": {"parallel": {"tensor": 2, "pipeline": 2, "sequence": True}},
    "pp2×dp2, distributed optimizer, all overlapped": CASES[
        "pp2, distributed optimizer, all overlapped"
    ],
    "pp4": {"parallel": {"pipeline": 4}},
}


def train_on_four(ranks: Ranks) -> dict[str, Trained]:
    found = {}
    for name, case in FOUR.items():
        trained, engine = found.setdefault(name, Trained()), build(case, ranks, tied=True)
        for step in range(3):
            trained.losses.append(take_step(engine, step))
            if step == 0:
                trained.first = engine.gradients()
            trained.norms.append(float(engine.clip_gradient(OPTIM.clip_norm)))
            engine.optimizer_step(OPTIM.lr)
    return found


@pytest.mark.soak
def test_on_four_ranks_two_ways_of_spreading_go_together() -> None:
    """Three steps: with unequal tokens, with other micro-batches, and without any image."""
    wanted = reference(tied=True)
    for name, trained in run_ranks(train_on_four, 4)[0].items():
        first = relative_difference(
            {key: tensor.double() for key, tensor in trained.first.items()}, wanted.first
        )
        print(f"{name}: gradient {first:.1e}")
        assert first <= 5e-6, name
        assert trained.losses == pytest.approx(wanted.losses[:3], rel=1e-5), name
        assert trained.norms == pytest.approx(wanted.norms[:3], rel=1e-5), name


def test_what_cannot_be_is_said_at_once_before_anything_is_built() -> None:
    case = {
        "bridge": "mbridge",
        "parallel": {"tensor": 3, "pipeline": 3, "context": 2},
        "transformer_config": {"bias_activation_fusion": True},
        "wrap_config": {"share_embeddings_and_output_weights": False},
    }
    with pytest.raises(SharedFindings) as raised:
        build(case, Ranks(), tied=True, dtype=torch.float64)
    assert [(one.rule, one.parameter) for one in raised.value.diagnostics] == [
        ("not-built-on-engine", "engine.wrap_config.share_embeddings_and_output_weights"),
        ("not-built-on-engine", "model.dtype"),
        ("not-built-on-engine", "engine.transformer_config.bias_activation_fusion"),
        ("needs-transformer-engine", "engine.parallel.context"),
        ("needs-transformer-engine", "engine.bridge"),
        ("parallel-sizes", "engine.parallel.context"),
        ("parallel-sizes", "engine.parallel.pipeline"),
        *[("parallel-sizes", "engine.parallel.tensor")] * 2,
    ]
    with pytest.raises(SharedFindings, match="drift apart"):
        build({"ddp_config": {"use_distributed_optimizer": True}}, Ranks(), tied=True)


def test_without_megatron_core_the_command_that_installs_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vtool.engines.megatron.start.find_spec", lambda _name: None)
    with pytest.raises(SharedFindings) as raised:
        build({}, Ranks(), tied=True)
    assert [(one.rule, one.help) for one in raised.value.diagnostics] == [
        ("extra-not-installed", "pip install 'vtool[megatron]'")
    ]


@pytest.mark.full
def test_a_run_on_the_cpu_is_the_same_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        # a build for CUDA would ask its driver
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        engine = build({}, Ranks(), tied=True)
        assert engine.config.use_cpu_initialization
        losses = []
        for step in range(2):
            losses += [take_step(engine, step), float(engine.clip_gradient(OPTIM.clip_norm))]
            engine.optimizer_step(OPTIM.lr)
        assert {tensor.device for tensor in engine.module.parameters()} == {CPU}
        seen.append(losses)
    assert seen[0] == seen[1]


def first_step_in_bfloat16(ranks: Ranks) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("dp2", "dp2, distributed optimizer", "tp2+sp", "pp2"):
        engine = build(CASES[name], ranks, True, torch.bfloat16)
        computed = {str(parameter.dtype) for parameter in engine.module.parameters()}
        start = model_of(engine)
        found[name] = {
            "loss": take_step(engine, 0),
            "norm": float(engine.clip_gradient(None)),
            "computed": computed,
            "start": start,
        }
        engine.optimizer_step(1e-6)
        state = {**model_of(engine), **optimizer_of(engine)}
        found[name]["kept"] = {str(tensor.dtype) for tensor in state.values()}
        moved = [
            bool((state[key] != start[key]).float().mean() > 0.9)
            for key in start
            if "embed_tokens" not in key and "k_proj.bias" not in key
        ]
        found[name]["moved"] = all(moved)
    return found


@pytest.mark.full
def test_bfloat16_computes_in_bfloat16_and_loses_no_update() -> None:
    """An update of 1e-6 is far below what bfloat16 can resolve at a weight of 0.1."""
    wanted = reference(True)
    own = tiny_model(tied=True)
    for name, found in run_ranks(first_step_in_bfloat16, 2)[0].items():
        print(name, found["loss"] / wanted.losses[0] - 1, found["norm"] / wanted.norms[0] - 1)
        assert found["computed"] == {"torch.bfloat16"}, name
        assert found["kept"] == {"torch.float32"}, name
        assert all(
            torch.equal(found["start"][key], parameter) for key, parameter in own.named_parameters()
        ), name
        assert found["loss"] == pytest.approx(wanted.losses[0], rel=5e-3), name
        assert found["norm"] == pytest.approx(wanted.norms[0], rel=2e-2), name
        assert found["moved"], name
