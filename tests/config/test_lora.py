"""Which layers get adapters; and what contradicts what."""

from collections.abc import Iterator

import pytest
from torch import nn

from vtool.config.load import examine, load_run
from vtool.config.lora import LINEAR, chosen, names_it
from vtool.config.schema import Lora, Model
from vtool.diagnostics import Diagnostic
from vtool.models.families import FAMILIES, family
from vtool.models.tokens import TokenIds


def found(*overrides: str) -> list[tuple[str, str, str | None]]:
    return [
        (one.rule, one.severity, one.parameter) for one in examine("digits", overrides).findings
    ]


def only(*overrides: str) -> Diagnostic:
    (finding,) = examine("digits", overrides).findings
    return finding


@pytest.mark.parametrize("name", FAMILIES)
def test_the_table_has_every_linear_layer_of_the_family_in_its_part(name: str) -> None:
    from transformers import AutoModelForImageTextToText

    ids = TokenIds(image=1, video=2, vision_start=3, vision_end=4, end=5, pad=6)
    model = AutoModelForImageTextToText.from_config(family(name).random_config("tiny", 32, ids))

    def real() -> Iterator[tuple[str, str]]:
        for module_name, module in model.named_modules():
            if isinstance(module, nn.Linear) and module is not model.get_output_embeddings():
                parts = (
                    (
                        "N"
                        if part.isdigit() and ".mlp." not in module_name.partition("merger")[2]
                        else part
                    )
                    for part in module_name.split(".")
                )
                yield family(name).part(module_name), ".".join(parts)

    assert set(real()) == {(part, each) for part, names in LINEAR[name].items() for each in names}


def test_a_name_is_told_by_its_end() -> None:
    name = "model.language_model.layers.12.self_attn.q_proj"
    assert all(
        names_it(end, name) for end in ("q_proj", "self_attn.q_proj", "12.self_attn.q_proj", name)
    )
    assert not any(
        names_it(end, name)
        for end in ("proj", "_proj", "attn.q_proj", "2.self_attn.q_proj", f"x.{name}")
    )
    assert names_it("12.self_attn.q_proj", name.replace("12", "N"))


def test_targets_and_exclude_choose() -> None:
    names = ["a.q_proj", "a.k_proj", "b.q_proj"]
    assert chosen(names, Lora()) == names
    assert chosen(names, Lora(targets=("q_proj",))) == ["a.q_proj", "b.q_proj"]
    assert chosen(names, Lora(targets=("q_proj",), exclude=("b.q_proj",))) == ["a.q_proj"]


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


def test_something_is_left_to_train() -> None:
    assert found("model.freeze={vision: true, projector: true, language: true}") == [
        ("nothing-to-train", "error", "model.freeze")
    ]
    assert found("model.freeze={vision: true, projector: true, language: true}", "lora={}") == [
        ("nothing-to-train", "error", "model.freeze")
    ]


def test_what_is_said_of_a_frozen_part_has_no_effect() -> None:
    assert found("model.freeze.vision=true", "optim.groups.vision.lr=1e-4") == [
        ("ignored-setting", "note", "optim.groups.vision.lr")
    ]


def test_dropout_is_not_built_on_megatron() -> None:
    assert found("engine=megatron", "lora.dropout=0.1") == [
        ("not-built-on-engine", "error", "lora.dropout")
    ]
    assert found("engine=megatron", "lora={}") == []
