"""A finding hides the rules that read its setting, and no other; no default stands in for it."""

from pathlib import Path

import pytest

from vtool.config.load import examine, load_run
from vtool.config.partial import partial, without_setting
from vtool.config.schema import Fsdp2, Run
from vtool.config.schema.base import NotValid

CONFLICTS = (
    "engine=megatron",
    "engine.ddp_config.use_distributed_optimizer=true",
    "engine.ddp_config.grad_reduce_in_fp32=false",
    "engine.ddp_config.overlap_param_gather=true",
    "engine.wrap_config.use_distributed_optimizer=false",
    "model.dtype=bfloat16",
)


def rules(*overrides: str) -> list[str]:
    return [each.rule for each in examine("digits", overrides).findings]


@pytest.mark.parametrize("broken", ["device.numa=nod", "device.nmua=node", "device.threads=0"])
def test_a_typo_next_to_what_a_rule_reads_hides_nothing_of_it(broken: str) -> None:
    conflicts = rules(*CONFLICTS).count("megatron-ddp-conflict")
    assert conflicts >= 2
    found = rules(*CONFLICTS, broken)
    assert found.count("megatron-ddp-conflict") == conflicts
    assert len(found) == len(rules(*CONFLICTS)) + 1


@pytest.mark.parametrize(
    ("broken", "left"),
    [
        ("engine.ddp_config.bucket_size=many", 3),
        ("engine.ddp_config.nccl_ub=perhaps", 3),
        ("engine.ddp_config.overlap_param_gather=3", 2),
    ],
)
def test_a_bad_field_of_ddp_config_hides_only_what_reads_it(broken: str, left: int) -> None:
    assert rules(*CONFLICTS).count("megatron-ddp-conflict") == 3
    assert rules(*CONFLICTS, broken).count("megatron-ddp-conflict") == left
    alone = examine("digits", ["engine=megatron", broken])
    assert alone.checks["megatron-ddp-conflict"] == "not-run"


@pytest.mark.parametrize(
    ("broken", "hidden"),
    [
        ("device.kind=cdua", "megatron-ddp-conflict"),
        ("optim.warmup_steps=-1", "warmup-too-long"),
        ("data.max_lenght=5", "max-length-missing"),
        ("data.max_length=many", "max-length-missing"),
        ("model.freeze.vision=maybe", "nothing-to-train"),
        ("data.validation=[{format: digits, split: nothing}]", "evaluated-on-trained-rows"),
        ("engine.kind=fspd2", "parallel-sizes"),
    ],
)
def test_a_rule_that_reads_what_is_broken_is_not_run(broken: str, hidden: str) -> None:
    given = [*CONFLICTS, "data.on_overlong=drop", "train.steps=60", broken]
    examined = examine("digits", given)
    assert examined.checks[hidden] == "not-run"
    assert hidden not in [each.rule for each in examined.findings]


def test_an_unknown_key_makes_only_what_it_may_mean_doubtful() -> None:
    # data.max_length is written: the misspelt one cannot have been meant to give it
    found = rules("data.max_lenght=5", "data.max_length=64", "data.micro_batch_size=64")
    assert found == ["unknown-key", "micro-batch-larger-than-share"]


@pytest.mark.parametrize(
    ("choice", "more"),
    [("engine=fspd2", "steps-or-epochs"), ("optim=adam", "steps-or-epochs")],
)
def test_a_misspelt_choice_of_a_group_hides_no_finding_of_another(choice: str, more: str) -> None:
    found = rules(choice, "train={steps: 9, epochs: 3}", "data.nothing=1", "model.attention=flash")
    assert sorted(found) == sorted(["unknown-group-choice", "unknown-key", "unknown-choice", more])


def test_a_misspelt_choice_in_a_defaults_list_hides_no_finding_either(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "defaults:\n  - digits\n  - override /engine: fspd2\n  - override /optim: adam\n"
        "  - _self_\ntrain: {steps: 9, epochs: 3}\nmodel: {attention: flash}\n"
    )
    found = examine(str(recipe)).findings
    assert sorted(each.rule for each in found) == [
        "steps-or-epochs",
        "unknown-choice",
        "unknown-group-choice",
        "unknown-group-choice",
    ]
    assert [
        each.origin.line for each in found if each.rule == "unknown-group-choice" and each.origin
    ] == [3, 4]


def test_what_a_missing_file_would_have_given_is_not_reported_as_missing() -> None:
    found = rules("optim=adam", "optim.betas=[0.9]", "engine=fspd2", "engine.cpu_offload=true")
    assert sorted(found) == ["out-of-range", "unknown-group-choice", "unknown-group-choice"]


def test_settings_without_a_valid_value_raise_where_they_are_read() -> None:
    values = {
        "kind": "sft",
        "engine": {"kind": "fsdp2", "cpu_offload": "maybe", "reshard_after_forward": True},
        "train": {"steps": 3},
    }
    broken = [("engine", "cpu_offload"), ("data",), ("optim",), ("run",)]
    run = partial(Run, values, broken)
    assert isinstance(run, Run)
    assert isinstance(run.engine, Fsdp2)
    assert run.engine.reshard_after_forward
    assert run.train.steps == 3
    for read in (
        lambda: run.engine.cpu_offload,  # type: ignore[union-attr]
        lambda: run.data,
        run.engine.model_dump,
    ):
        with pytest.raises(NotValid):
            read()
    assert run.model == Run.model_fields["model"].default


def test_one_setting_is_taken_out_of_a_group_or_of_a_list() -> None:
    run = load_run("digits").run
    taken = without_setting(without_setting(run, "model.path"), "data.train.0.split")
    assert isinstance(taken, Run)
    assert taken.model.family == run.model.family
    with pytest.raises(NotValid):
        _ = taken.model.path
    with pytest.raises(NotValid):
        _ = taken.data.train[0].split  # type: ignore[union-attr]
    assert run.model.path is None


def test_true_and_false_are_read_beside_a_setting_that_is_broken() -> None:
    """The words for them are made by a validator that stands beside the type."""
    for value in ("true", "false"):
        found = rules(f"model.gradient_checkpointing={value}", "model.dtype=float31")
        assert found == ["unknown-choice"]
