"""engine.bridge=mbridge: the real package builds and wraps the language model, and the engine
trains it as it trains its own.

mbridge builds Transformer Engine's layers, which has no build for a CPU. In their place are those
that the engine has on a CPU; all else is the package's own code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from tests.engines.megatron import test_engine as by_one
from tests.engines.megatron.test_engine import CASES, OPTIM, Trained, take_step
from tests.engines.ranks import run_ranks
from tests.runs import relative_difference
from vtool.engines.megatron import engine, start
from vtool.engines.megatron.gpt_model import layers_of
from vtool.engines.ranks import CPU, Ranks, SharedFindings

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
pytest.importorskip("mbridge", reason="mbridge is not installed")
NAMES = ("dp2", "dp2, distributed optimizer, all overlapped", "tp2+sp", "pp2")


@contextmanager
def as_if_on_a_gpu() -> Iterator[None]:
    from mbridge.core import llm_bridge

    kept = llm_bridge.get_gpt_decoder_block_spec, start.settings_for_transformer_engine

    def own_layers(config: Any, use_transformer_engine: bool, vp_stage: int | None = None) -> Any:
        assert use_transformer_engine
        return layers_of(config, CPU, own=True)

    llm_bridge.get_gpt_decoder_block_spec, start.settings_for_transformer_engine = (
        own_layers,
        lambda *_, **__: [],
    )
    try:
        yield
    finally:
        llm_bridge.get_gpt_decoder_block_spec, start.settings_for_transformer_engine = kept


def seen_of(built: engine.MegatronEngine, *names: str) -> dict[str, set[Any]]:
    read = list(built.observe(by_one.QWEN.component))
    return {name: {one.value for one in read if one.name == f"engine.{name}"} for name in names}


def trained(ranks: Ranks, tied: bool) -> dict[str, tuple[Trained, dict[str, Any]]]:
    found = {}
    for name in NAMES:
        with as_if_on_a_gpu():
            built = by_one.build({**CASES[name], "bridge": "mbridge"}, ranks, tied)
        one = Trained()
        for step in range(3):
            one.losses.append(take_step(built, step))
            if step == 0:
                one.first = built.gradients()
            one.norms.append(float(built.clip_gradient(OPTIM.clip_norm)))
            built.optimizer_step(OPTIM.lr)
        asked = (
            "bridge",
            "wrap_config.use_distributed_optimizer",
            "ddp_config.overlap_grad_reduce",
            "ddp_config.bucket_size",
        )
        found[name] = one, {**seen_of(built, *asked), "is": type(built.bridge).__name__}
    found["native"] = Trained(), seen_of(by_one.build({}, ranks, tied), "bridge")
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    "tied", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["tied", "untied"]
)
def test_what_mbridge_builds_trains_as_one_process_does(tied: bool) -> None:
    wanted = by_one.reference(tied)
    found = run_ranks(trained, 2, tied)[0]
    assert found.pop("native")[1] == {"bridge": {"native"}}
    for name, (ours, seen) in found.items():
        first = relative_difference(
            {key: tensor.double() for key, tensor in ours.first.items()}, wanted.first
        )
        print(f"{name}: gradient {first:.1e}; {seen}")
        assert first <= 5e-6, name
        assert ours.losses == pytest.approx(wanted.losses[:3], rel=1e-5), name
        assert ours.norms == pytest.approx(wanted.norms[:3], rel=1e-5), name
        assert (seen["is"], seen["bridge"]) == ("Qwen2Bridge", {"mbridge"}), name
        shares = CASES[name].get("wrap_config", {}).get("use_distributed_optimizer", False)
        # verl#5775: mbridge's own default is true
        assert seen["wrap_config.use_distributed_optimizer"] == {shares}, name
        overlaps = CASES[name].get("ddp_config", {})
        assert seen["ddp_config.overlap_grad_reduce"] == {
            overlaps.get("overlap_grad_reduce", False)
        }, name
        assert seen["ddp_config.bucket_size"] == {overlaps.get("bucket_size")}, name


def test_what_mbridge_would_set_otherwise_is_what_the_settings_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Mbridge's own config fuses mask and softmax, and has sequence parallelism with any tensor
    parallelism; it prints, too.
    """
    configs = []
    for bridge in ("native", "mbridge"):
        with as_if_on_a_gpu():
            configs.append(vars(by_one.build({"bridge": bridge}, Ranks(), tied=True).config))
    native, theirs = configs
    differ = {name for name in native | theirs if native.get(name) != theirs.get(name)}
    # How hidden states go from stage to stage; and functions that are made again for each config.
    assert {name for name in differ if not callable(native.get(name))} <= {"batch_p2p_comm"}, differ
    assert capsys.readouterr().out == ""


def test_a_frozen_language_model_is_built_and_not_wrapped() -> None:
    made = by_one.tiny_model(tied=True).train()
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name.startswith("model.visual."))
    with as_if_on_a_gpu():
        built = engine.MegatronEngine(
            made,
            by_one.Settings(kind="megatron", bridge="mbridge"),
            OPTIM,
            Ranks(),
            torch.float32,
            by_one.QWEN.component,
        )
    language, tower = built.both
    assert language.ddp is None
    assert tower.ddp is not None
    assert seen_of(built, "bridge") == {"bridge": {"mbridge"}}


def test_on_a_cpu_it_is_refused_and_without_the_package_the_command_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        start, "find_spec", lambda name: None if name == "mbridge" else find_spec(name)
    )
    with pytest.raises(SharedFindings) as raised:
        by_one.build({"bridge": "mbridge"}, Ranks(), tied=True)
    refused, lacking = raised.value.diagnostics
    assert (refused.rule, refused.parameter) == ("needs-transformer-engine", "engine.bridge")
    assert "there is none for a CPU" in refused.message
    assert lacking.rule == "extra-not-installed"
    assert str(lacking.help).startswith("pip install 'vtool[megatron,mbridge]'")
