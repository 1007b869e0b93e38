"""The help on a misspelt key, a misspelt word, and a value of another type."""

from pathlib import Path

import pytest

from vtool.config.load import examine
from vtool.config.schema.formats import FORMATS
from vtool.config.settings import all_settings, choices
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.near_miss import near
from vtool.engines.registry import ENGINES

ROWS_HELP = (
    "data.train=my.jsonl, a file or a folder of rows, whose layout is detected; of several, a list:"
    " data.train=[a.jsonl,b.json]"
)


def finding(override: str) -> Diagnostic:
    (found,) = (each for each in examine("digits", [override]).findings if each.severity == "error")
    return found


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("optim.lrr=1", "`optim.lr`"),
        ("optim.learning_rate=1", "`optim.lr`"),
        ("optim.weightdecay=1", "`optim.weight_decay`"),
        ("train.stpes=1", "`train.steps`"),
        ("lr=1", "`optim.lr`, `optim.groups.vision.lr` or `optim.groups.projector.lr`"),
        ("optimizer={lr: 1}", "`optim`"),
        ("trian.steps=1", "`train`"),
        ("epochs=1", "`train.epochs`"),
        ("num_train_epochs=1", "`train.epochs`"),
        (
            "batch_size=1",
            "`evaluation.batch_size`, `data.global_batch_size` or `data.micro_batch_size`",
        ),
        ("steps=4", "`train.steps`, `optim.warmup_steps` or `checkpoint.every_steps`"),
        ("data.max_len=1", "`data.max_length`"),
        ("model.rope_theta=1", None),
        ("seed=1", "`run.seed`"),
    ],
)
def test_an_unknown_key_is_answered_with_what_it_may_have_meant(
    override: str, meant: str | None
) -> None:
    found = finding(override)
    assert found.rule == "unknown-key"
    assert found.help == (
        f"did you mean {meant}?"
        if meant
        else (
            "`model` has the settings family, path, revision, modeling, init, size, dtype,"
            " attention, gradient_checkpointing, dummy_visual, freeze"
        )
    )


def test_a_setting_of_another_kind_of_source_is_distinguished() -> None:
    help = finding("data.train.0.image_folder=x").help
    assert help is not None
    assert help.startswith("`image_folder` is a setting of format: llava, alpaca, ")


def test_a_setting_of_another_engine_is_distinguished() -> None:
    assert finding("engine.cpu_offload=true").help == "`cpu_offload` is a setting of kind: fsdp2"
    assert (
        finding("engine.reshard_afer_forward=true").help
        == "did you mean `engine.reshard_after_forward`?"
    )
    found = finding("engine.kind=fsdp")
    assert (found.rule, found.help, found.expected) == (
        "unknown-choice",
        "did you mean `fsdp2`?",
        ", ".join(ENGINES),
    )
    assert finding("engine=fsdp").help == "did you mean `engine=fsdp2`?"


@pytest.mark.parametrize(
    ("override", "rule", "expected", "help"),
    [
        (
            "model.attention=sdp",
            "unknown-choice",
            "sdpa, varlen, flash_attention_2, flash_attention_3, eager",
            "did you mean `sdpa`?",
        ),
        (
            "model.dtype=Float32",
            "unknown-choice",
            "float32, bfloat16, float64",
            "did you mean `float32`?",
        ),
        (
            "data.train.0.format=message",
            "unknown-choice",
            ", ".join(choices(entry.model_fields["format"].annotation)[0] for entry in FORMATS),
            "did you mean `messages`?",
        ),
        (
            "run.name=7",
            "wrong-type",
            "text that is not empty",
            "quote it for vtool, and for the shell: \"run.name='7'\"",
        ),
        ("train.steps=5.0", "wrong-type", "an integer of at least 1, or null", "write 5"),
        ("device=cpu", "wrong-type", "a group of settings", "did you mean `device.kind=cpu`?"),
        (
            "engine.gradient_as_bucket_view=yes",
            "wrong-type",
            "true or false",
            "write true or false",
        ),
        ("optim.clip_norm=none", "wrong-type", "a number above 0, or null", "write null"),
        ("optim.lr='1e-3'", "wrong-type", "a number above 0", "without quotes it is a number"),
        (
            "data.train=5",
            "wrong-type",
            "a list that is not empty, each entry a group of settings",
            ROWS_HELP,
        ),
        (
            "data.train=[5]",
            "wrong-type",
            "a group of settings",
            "write a file or a folder of rows, or a group: {format: messages, path: my.jsonl}",
        ),
        (
            "optim.name=sgd",
            "unknown-choice",
            "adamw",
            "only `adamw` is built: leave `optim.name` out",
        ),
        ("model.dtype=bf16", "unknown-choice", None, "write bfloat16"),
        (
            "model.dtype=fp16",
            "unknown-choice",
            None,
            "float16 is not built, whose gradients need scaling; bfloat16 takes as few bytes",
        ),
        ("data.drop_model_inputs=pixel_values", "wrong-type", None, "write a list: [pixel_values]"),
        (
            "optim.betas=[0.9]",
            "out-of-range",
            "a list of 2, each a number of at least 0 and below 1",
            None,
        ),
        (
            "optim.betas=[0.9,0.9,0.9]",
            "out-of-range",
            "a list of 2, each a number of at least 0 and below 1",
            None,
        ),
        ("optim.betas=[0.9,1]", "out-of-range", "a number of at least 0 and below 1", None),
        ("data.workers=many", "wrong-type", "an integer of at least 0, or `auto`, or null", None),
        ("data.workers=-1", "out-of-range", "an integer of at least 0, or `auto`, or null", None),
        ("data.train=[]", "out-of-range", None, ROWS_HELP),
    ],
)
def test_a_value_that_does_not_fit_is_answered_with_what_does(
    override: str, rule: str, expected: str | None, help: str | None
) -> None:
    found = finding(override)
    assert found.rule == rule
    assert expected is None or found.expected == expected
    assert found.help == help


def test_a_quoted_number_in_a_file_is_answered_for_a_file(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("defaults: [digits]\nrun: {name: 7}\noptim.lr: 1\n")
    helps = {each.rule: each.help for each in examine(str(recipe)).findings}
    assert helps == {
        "wrong-type": 'quote it: name: "7"',
        "unknown-key": "in a file, groups are nested: `optim: {lr: …}`",
    }


def test_every_setting_says_what_it_takes_and_what_it_is_for() -> None:
    for setting in all_settings():
        assert setting.doc, setting.name
        assert "typing" not in setting.takes, setting.name
        assert "<" not in setting.takes, setting.name


def test_words_that_are_nothing_like_it_are_not_offered() -> None:
    assert near("zzz", ["sdpa", "eager"]) == []
    assert near("eage", ["sdpa", "eager"]) == ["eager"]
