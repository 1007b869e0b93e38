"""A run's live objects have what its settings ask for; what is dropped on the way is found."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.ranks import run_ranks
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, read_lines, request, session
from tests.training.changed_settings import change_setting, replace_setting
from tests.training.variants import Look, look, requests
from vtool.config import schema
from vtool.config.expected import expected_settings
from vtool.config.readback import compare_readback, observed_settings
from vtool.config.schema.base import ReadBack
from vtool.config.settings import arrivals
from vtool.diagnostics import Findings
from vtool.engines import fsdp2
from vtool.engines.ddp import DdpEngine
from vtool.engines.megatron import engine as megatron
from vtool.engines.ranks import Ranks
from vtool.engines.registry import ENGINES
from vtool.families.family import load_family
from vtool.models import adapters
from vtool.models import build as model_build
from vtool.releases import fsdp_groups
from vtool.training import launch, model_and_engine
from vtool.training import session as sessions
from vtool.training.model_and_engine import build_engine
from vtool.training.observe_run import check_arrival, observe_run
from vtool.training.session import RunRequest
from vtool.training.sft import train

# Read back on other devices only, or with kernels that are not here: see the tests that name them.
ELSEWHERE = {"engine.cpu_offload"}
READ = {name for name, said in arrivals().items() if isinstance(said, ReadBack)} - ELSEWHERE


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRequest]:
    return requests(tmp_path_factory.mktemp("variants"))


@pytest.fixture(scope="module")
def two(made: dict[str, RunRequest]) -> list[dict[str, Look]]:
    """Every variant on two ranks, which are started once."""
    return run_ranks(look, 2, made)


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., RunRequest]:
    write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 4))

    def make(*more: str) -> RunRequest:
        common = (
            messages(tmp_path / "rows.jsonl"),
            "data.global_batch_size=4",
            "optim.warmup_steps=1",
            f"run.dir={tmp_path / 'run'}",
        )
        return request("rows", *common, "train={steps: 3, epochs: null}", "device.kind=cpu", *more)

    return make


def found(made: RunRequest) -> set[str]:
    """The settings that have not arrived in one process."""
    opened, _ = session(made)
    try:
        check_arrival(opened, made.origins)
    except Findings as findings:
        return {
            str(finding.parameter)
            for finding in findings.diagnostics
            if finding.rule == "setting-not-arrived"
        }
    return set()


@pytest.mark.full
def test_on_two_ranks_of_every_engine_everything_has_arrived(two: list[dict[str, Look]]) -> None:
    assert {
        (name, message) for rank in two for name, one in rank.items() for message in one.findings
    } == set()


def test_what_one_rank_alone_has_is_reported_by_every_rank(two: list[dict[str, Look]]) -> None:
    for rank in two:
        for name, one in rank.items():
            assert one.of_one == [
                "rank 1: `optim.eps` asks for 1e-08, but an AdamW of its own has 1"
            ], name


def seen_of(made: dict[str, RunRequest], two: list[dict[str, Look]], digits: Any) -> set[str]:
    everything = [(made[name].run, one.seen) for rank in two for name, one in rank.items()]
    return {
        one
        for run, seen in [*everything, *digits]
        for one in observed_settings(expected_settings(run), seen) | {each.name for each in seen}
    }


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Open a run of the digits before it has looked at a row."""
    from vtool.config.load import load_run
    from vtool.verification.shrink_run import shrink_run
    from vtool.verification.small_session import open_small_session

    rows = write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", [{"messages": []}])
    info = rows.with_name("dataset_info.json")
    info.write_text(json.dumps({"mine": {"file_name": rows.name}}))
    llava = f"{{format: llava, path: '{rows}', image_folder: '{rows.parent}'}}"
    cauldron = f"{{format: cauldron, path: '{rows}', texts: turns, ignore: [notes]}}"
    named = f"{{format: llama_factory, path: '{info}', dataset: mine}}"
    second = write_rows(rows.with_name("beside.jsonl"), [{"messages": []}])
    messages = f"{{format: messages, path: '{second}'}}"
    overrides: dict[str, list[str]] = {
        "digits": ["train={steps: null, epochs: 20}"],
        "files": [f"data.{split}=[{llava}, {messages}]" for split in ("validation", "test")]
        + [f"data.train=[{llava}]"],
        # a setting that no other format has is looked for in the first entry
        **{
            name: [f"data.{split}=[{first}]" for split in ("train", "validation", "test")]
            for name, first in (("cauldron", cauldron), ("named", named))
        },
    }
    found = []
    for name, more in overrides.items():
        loaded = load_run("digits", more)
        small = shrink_run(loaded.run)
        opened = open_small_session(loaded.run, small.run, tmp_path_factory.mktemp(name), Ranks())
        seen = observe_run(opened)
        assert compare_readback(expected_settings(small.run), seen) == []
        found.append((small.run, seen))
    return found


def test_every_setting_that_claims_to_be_read_back_is_seen(
    made: dict[str, RunRequest], two: list[dict[str, Look]], digits: Any
) -> None:
    unseen = READ - seen_of(made, two, digits)
    assert unseen == set(), (
        "no object of these runs has them: yield them in the function that the field's ReadBack"
        " names, and give one that is null by default a value in tests/training/variants.py"
    )


@pytest.mark.parametrize("kind", ENGINES)
def test_each_engine_says_which_it_is(
    kind: str, made: dict[str, RunRequest], two: list[dict[str, Look]]
) -> None:
    """A comparison is of what was observed: an engine that says nothing would pass."""
    mine = [name for name in made if made[name].run.engine.kind == kind]
    assert mine, f"give engine={kind} a run in tests/training/variants.py"
    for rank in two:
        for name in mine:
            said = [one.value for one in rank[name].seen if one.name == "engine.kind"]
            assert set(said) == {kind}, name


@pytest.mark.parametrize("name", sorted(READ))
def test_another_value_of_any_of_them_is_found(
    name: str, made: dict[str, RunRequest], two: list[dict[str, Look]], digits: Any
) -> None:
    """The objects are those of one run, and what is asked is another's:

    a reader that repeats the settings would not be seen to.
    """
    runs = [(made[variant].run, one.seen) for rank in two for variant, one in rank.items()]
    asked = [
        (changed, seen)
        for run, seen in [*runs, *digits]
        if (changed := change_setting(run, name)) is not None
    ]
    if not asked:  # null in every run: what is asked is then any value but the one that is there
        assert name.startswith(("engine.ddp_config.", "engine.wrap_config.", "data.")), (
            f"{name} is null in every run: give it a value in tests/training/variants.py"
        )
        having = [
            (run, seen) for run, seen in [*runs, *digits] if any(one.name == name for one in seen)
        ]
        assert having, f"no run has {name}: one of another format goes into `digits` above"
        run, seen = having[0]
        there = next(one for one in seen if one.name == name).value
        wrong = replace_setting(
            run,
            name,
            (
                not there
                if isinstance(there, bool)
                else "other"
                if isinstance(there, str)
                else (there or 0) + 1
            ),
        )
        asked = [(wrong, seen)]
    parameters = {
        str(finding.parameter)
        for changed, seen in asked
        for finding in compare_readback(expected_settings(changed), seen)
    }
    assert name in {
        ".".join(part for part in each.split(".") if not part.isdigit()) for each in parameters
    }


def test_offloading_is_seen_where_there_is_somewhere_to_offload_to(
    small: Callable[..., RunRequest],
) -> None:
    opened, _ = session(small("engine=fsdp2"))
    group = fsdp_groups(opened.engine.parts[0][0])[0]  # type: ignore[attr-defined]
    assert not [one for one in observe_run(opened) if one.name == "engine.cpu_offload"]
    group.device = torch.device("cuda")
    assert [one.value for one in observe_run(opened) if one.name == "engine.cpu_offload"] == [False]
    group.offload_policy = fsdp2.CPUOffloadPolicy()
    assert [one.value for one in observe_run(opened) if one.name == "engine.cpu_offload"] == [True]


# What upstream has dropped, dropped here in the same place of our own way from a recipe to an
# object. Of the thirteen cases two are of profilers (verl#3052, verl#4206), whose settings act
# later (tests/profiling); and verl#5775 is also in tests/verification/test_live.py, with mbridge.
class TestUpstream:
    def test_betas_are_left_out(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """verl#4214."""
        adamw = torch.optim.AdamW

        class Without(adamw):  # type: ignore[misc,valid-type]
            def __init__(self, params: Any, betas: Any = None, **more: Any) -> None:
                super().__init__(params, **more)

        made = small("optim.betas=[0.9, 0.95]")
        assert found(made) == set()
        monkeypatch.setattr(torch.optim, "AdamW", Without)
        assert found(made) == {"optim.betas"}

    def test_the_distributed_optimizer_is_written_into_the_code(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """verl#4392; verl#5775 is the same of a bridge's default."""
        made = small("engine=megatron")
        live = megatron.live_ddp_config
        monkeypatch.setattr(
            megatron,
            "live_ddp_config",
            lambda *given, **more: replace(live(*given, **more), use_distributed_optimizer=True),
        )
        assert found(made) == {"engine.wrap_config.use_distributed_optimizer"}

    def test_fsdp_is_not_applied(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """verl#5854: the whole model in another engine; and no block of it by itself."""
        made = small("engine=fsdp2")
        assert found(made) == set()
        with monkeypatch.context() as patch:
            settings = schema.Ddp(kind="ddp")
            patch.setattr(
                sessions,
                "build_engine",
                lambda run, model, ranks, weights: build_engine(
                    run.model_copy(update={"engine": settings}), model, ranks
                ),
            )
            assert found(made) == {"engine.kind"}
        of = type(load_family("qwen2_5_vl"))
        monkeypatch.setattr(of, "blocks", lambda self, model: [])
        assert found(made) == {"engine.reshard_after_forward"}

    def test_the_sharding_is_written_into_the_code(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """dinov3#323."""
        shard = fsdp2.fully_shard
        monkeypatch.setattr(
            fsdp2,
            "fully_shard",
            lambda part, **given: shard(part, **{**given, "reshard_after_forward": True}),
        )
        assert found(small("engine=fsdp2", "engine.reshard_after_forward=false")) == {
            "engine.reshard_after_forward"
        }

    @pytest.mark.filterwarnings("ignore:reshard_after_forward=1")
    def test_one_is_not_true(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """pytorch#149750."""
        shard = fsdp2.fully_shard

        def as_number(part, **given):
            return shard(
                part, **{**given, "reshard_after_forward": given["reshard_after_forward"] and 1}
            )

        monkeypatch.setattr(fsdp2, "fully_shard", as_number)
        assert found(small("engine=fsdp2")) == {"engine.reshard_after_forward"}

    def test_one_setting_alone_is_handed_on(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """ms-swift#7962: of those of FSDP."""
        shard = fsdp2.fully_shard
        kept = ("mesh", "reshard_after_forward")
        monkeypatch.setattr(
            fsdp2,
            "fully_shard",
            lambda part, **given: shard(part, **{name: given[name] for name in kept}),
        )
        assert found(small("engine=fsdp2", "model.dtype=bfloat16")) == {"model.dtype"}

    def test_a_guard_makes_it_do_nothing(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """NeMo-RL#3494: `if hasattr(model, "…")`, and the model has it under another name."""
        made = small("model.gradient_checkpointing=true")
        assert found(made) == set()
        monkeypatch.setattr(model_build, "enable_checkpointing", lambda *_: None)
        assert found(made) == {"model.gradient_checkpointing"}

    def test_a_file_that_is_not_found_means_the_defaults(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """accelerate#1115."""
        made = small(
            "engine=fsdp2",
            "engine.reshard_after_forward=false",
            "optim.eps=1e-6",
            "optim.betas=[0.8, 0.9]",
        )
        defaults = schema.Optim(lr=made.run.optim.lr)
        build = model_and_engine.build_optimizer
        monkeypatch.setattr(
            model_and_engine,
            "build_optimizer",
            lambda module, _settings, part: build(module, defaults, part),
        )
        default = schema.Fsdp2(kind="fsdp2")
        monkeypatch.setattr(
            sessions,
            "build_engine",
            lambda run, model, ranks, weights: build_engine(
                run.model_copy(update={"engine": default}), model, ranks
            ),
        )
        assert found(made) == {
            "engine.reshard_after_forward",
            "optim.eps",
            "optim.betas",
            "optim.weight_decay",
        }

    def test_modules_that_are_to_be_left_out_are_not(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """accelerate#3698: `ignored_modules` was never set."""
        made = small("lora={rank: 2, exclude: [q_proj]}")
        assert found(made) == set()
        monkeypatch.setattr(adapters, "select_layers", lambda names, *_: list(names))
        assert found(made) == {"lora.exclude"}

    def test_what_a_builder_chooses_by_itself(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """xtuner#654: here, of the attention."""
        from transformers import AutoModelForImageTextToText

        made = small("model.attention=eager")
        from_config = AutoModelForImageTextToText.from_config

        def chosen(config, **given):
            return from_config(config, **{**given, "attn_implementation": "sdpa"})

        monkeypatch.setattr(AutoModelForImageTextToText, "from_config", chosen)
        assert found(made) == {"model.attention"}

    def test_weights_that_are_trained_in_bfloat16(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pure bfloat16 AdamW loses small updates, and its loss falls all the same."""
        made = small("model.dtype=bfloat16")
        monkeypatch.setattr(
            model_and_engine, "prepare_model", lambda _run, model, _: model.to(torch.bfloat16)
        )
        opened, _ = session(made)
        (finding,) = compare_readback(expected_settings(made.run), observe_run(opened))
        assert (
            finding.message
            == "`model.dtype` asks for trained weights in float32, but AdamW, group 0 (and 1 more)"
            " has bfloat16"
        )


class TestOfARun:
    def test_nothing_is_trained_and_every_start_is_held_to_its_settings(
        self, small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = small("optim.eps=1e-6", "checkpoint.every_steps=1")
        build = model_and_engine.build_optimizer
        default = made.run.optim.model_copy(update={"eps": 1e-8})
        dropped = lambda module, _settings, part: build(module, default, part)  # noqa: E731
        with monkeypatch.context() as patch:
            patch.setattr(model_and_engine, "build_optimizer", dropped)
            with pytest.raises(
                Findings,
                match=r"setting-not-arrived.*`optim.eps` asks for 1e-06, but AdamW, group 0",
            ):
                train(made, Ranks())
        metrics = made.run.folder / "metrics.jsonl"
        assert not metrics.exists()
        assert launch.run_rank(made, Ranks()).status == "finished"
        # Of a resumed run: as after a stop in the middle.
        (made.run.folder / "result.json").unlink()
        before = metrics.read_bytes()
        monkeypatch.setattr(model_and_engine, "build_optimizer", dropped)
        with pytest.raises(Findings, match=r"optim\.eps"):
            train(made, Ranks())
        assert metrics.read_bytes() == before


@pytest.mark.parametrize("largest", ["0.01", "null"])
def test_gradients_are_clipped_to_the_norm_that_is_asked(
    small: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch, largest: str
) -> None:
    norms: list[float] = []
    step = DdpEngine.optimizer_step

    def measured(engine: DdpEngine, lr: float) -> None:
        given = [one.grad for one in engine.parameters if one.grad is not None]
        norms.append(math.sqrt(sum(float(grad.double().pow(2).sum()) for grad in given)))
        step(engine, lr)

    monkeypatch.setattr(DdpEngine, "optimizer_step", measured)
    made = small(f"optim.clip_norm={largest}")
    train(made, Ranks())
    lines = read_lines(made.run.folder / "metrics.jsonl")
    before = [line["grad_norm"] for line in lines if "grad_norm" in line]
    assert min(before) > 0.1
    assert norms == pytest.approx([0.01] * 3 if largest == "0.01" else before, rel=1e-3)


def test_a_run_is_evaluated_when_and_as_it_is_asked(
    small: Callable[..., RunRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vtool.evaluation import evaluate

    asked: list[tuple[int, int]] = []
    answer = evaluate.answer_greedily

    def counted(
        model: Any, processor: Any, inputs: dict[str, torch.Tensor], max_new_tokens: int
    ) -> list[str]:
        asked.append((len(inputs["input_ids"]), max_new_tokens))
        return answer(model, processor, inputs, max_new_tokens)

    monkeypatch.setattr(evaluate, "answer_greedily", counted)
    rows = f"data.validation=[{{format: messages, path: '{tmp_path / 'rows.jsonl'}'}}]"
    made = small(rows, "evaluation={every_steps: 2, batch_size: 3, generate: {max_new_tokens: 2}}")
    train(made, Ranks())
    lines = read_lines(made.run.folder / "metrics.jsonl")
    assert [line["step"] for line in lines if "validation_nll" in line] == [2, 3]  # and at the end
    assert asked == [(3, 2), (1, 2)] * 2
