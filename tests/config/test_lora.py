"""Settings of adapters: how they arrive, and what contradicts what."""

import pytest

from vtool.config.load import examine, load_run
from vtool.config.schema import Lora, Model
from vtool.diagnostics import Diagnostic


def found(*overrides: str) -> list[tuple[str, str, str | None]]:
    return [
        (one.rule, one.severity, one.parameter) for one in examine("digits", overrides).findings
    ]


def only(*overrides: str) -> Diagnostic:
    (finding,) = examine("digits", overrides).findings
    return finding


def test_alpha_is_twice_the_rank_unless_it_is_given() -> None:
    assert (Lora(rank=8).scale, Lora(rank=8, alpha=4).scale) == (2.0, 0.5)


def test_settings_arrive() -> None:
    run = load_run(
        "digits",
        ["lora={rank: 8, targets: [q_proj]}", "lora.dropout=0.1", "optim.groups.vision.lr=1e-4"],
    ).run
    assert run.lora == Lora(rank=8, targets=("q_proj",), dropout=0.1)
    assert run.optim.groups.vision.lr == 1e-4
    assert load_run("digits", []).run.lora is None
    assert Model().freeze.model_dump() == {"vision": False, "projector": False, "language": False}


@pytest.mark.parametrize(
    "given",
    ["rank=0", "rank=-1", "alpha=0", "dropout=1.0", "dropout=-0.1", "targets=[]", "targets=['']"],
)
def test_what_makes_no_sense_is_out_of_range(given: str) -> None:
    assert [(rule, severity) for rule, severity, _ in found(f"lora.{given}")] == [
        ("out-of-range", "error")
    ]


def test_a_name_that_is_nowhere_is_shown_with_what_was_meant() -> None:
    finding = only("lora.targets=[q_prj,v_proj]")
    assert (finding.rule, finding.seen, finding.help) == (
        "lora-target",
        "q_prj",
        "did you mean `q_proj`?",
    )
    assert [name for _, _, name in found("lora.targets=[lm_head,embed_tokens]")] == [
        "lora.targets.0",
        "lora.targets.1",
    ]
    assert found("lora.targets=[q_proj]", "lora.exclude=[qproj]") == [
        ("lora-target", "error", "lora.exclude.0")
    ]


def test_a_name_in_a_frozen_part_alone_is_a_contradiction() -> None:
    finding = only("lora.targets=[attn.qkv,q_proj]", "model.freeze.vision=true")
    assert (finding.rule, finding.help) == (
        "lora-target",
        "leave it out, or set model.freeze.vision=false",
    )
    # the language model has one too
    assert found("lora.targets=[gate_proj]", "model.freeze.vision=true") == []


def test_exclude_may_not_take_everything() -> None:
    assert found("lora={targets: [q_proj], exclude: [self_attn.q_proj]}") == [
        ("lora-target", "error", "lora.exclude")
    ]


def test_a_module_that_is_to_be_saved_is_there_and_trained() -> None:
    finding = only("lora.modules_to_save=[merge]")
    assert (finding.rule, finding.help) == ("lora-target", "did you mean `merger`?")
    assert found("lora.modules_to_save=[merger, lm_head, visual.merger.mlp.0]") == []
    assert found("lora.modules_to_save=[merger]", "model.freeze.projector=true") == [
        ("lora-target", "error", "lora.modules_to_save.0")
    ]


@pytest.mark.parametrize(
    ("given", "setting"),
    [("dora=true", "lora.dora"), ("modules_to_save=[merger]", "lora.modules_to_save")],
)
def test_what_megatron_cannot_do_with_adapters_is_refused_by_name(given: str, setting: str) -> None:
    assert ("not-built-on-engine", "error", setting) in found(f"lora.{given}", "engine=megatron")


def test_something_is_left_to_train() -> None:
    assert found("model.freeze={vision: true, projector: true, language: true}") == [
        ("nothing-to-train", "error", "model.freeze")
    ]
    assert found("model.freeze={vision: true, projector: true, language: true}", "lora={}") == [
        ("nothing-to-train", "error", "model.freeze")
    ]


def test_a_setting_of_a_frozen_part_has_no_effect() -> None:
    assert found("model.freeze.vision=true", "optim.groups.vision.lr=1e-4") == [
        ("ignored-setting", "note", "optim.groups.vision.lr")
    ]


def test_dropout_is_not_built_on_megatron() -> None:
    assert found("engine=megatron", "lora.dropout=0.1") == [
        ("not-built-on-engine", "error", "lora.dropout")
    ]
    assert found("engine=megatron", "lora={}") == []
