"""The settings in force, written as a recipe:

whatever stands in them, reading it again gives the same run.
"""

from pathlib import Path

import pytest
import yaml

from vtool.config.load import effective_yaml, load_run
from vtool.diagnostics import Findings

TEXTS = [
    "a # b",
    "a: b",
    "größe 图 😀",
    "1e5",
    "1e-3",
    "007",
    "1_000",
    "1:30",
    "yes",
    "null",
    "~",
    "2026-01-01",
    "- a",
    "[a]",
    "{a: b}",
    "*a",
    "!a",
    "%a",
    "'",
    '"',
    "\\",
    "a\\nb",
    "a\nb",
    "\ta",
    " a ",
    "a\u2028b",
    "a\x85b",
    "\x7f",
    "=",
    "<<",
    ".5",
    "--- a",
    "...",
    "\ufeffa",
    "x" * 250,
]
# Text that would be a reference if its backslash were lost.
ESCAPED = ["\\${x}", "a \\${optim.lr} b", "a\\\\\\${x}", "\\${a}\\${b}"]


def quoted(text: str) -> str:
    return yaml.safe_dump(text, default_style='"', width=10**6).strip()


@pytest.mark.parametrize("text", [*TEXTS, *ESCAPED], ids=ascii)
def test_a_text_stays_what_it_was(text: str, tmp_path: Path) -> None:
    recipe, again = tmp_path / "mine.yaml", tmp_path / "again.yaml"
    recipe.write_text(
        f"defaults: [digits, _self_]\nrun: {{name: {quoted(text)}}}\n", encoding="utf-8"
    )
    loaded = load_run(str(recipe))
    again.write_text(effective_yaml(loaded), encoding="utf-8")
    assert load_run(str(again)).run == loaded.run
    if text in TEXTS:  # any YAML reader reads the same: the report is made with one
        assert (
            yaml.safe_load(again.read_text(encoding="utf-8"))["run"]["name"]
            == loaded.run.run.name
            == text
        )


@pytest.mark.parametrize(
    "overrides",
    [
        ["optim.lr=1e-08", "optim.eps=1e-30", "optim.betas=[0.0,0.999999999]"],
        [
            "optim.lr=1",
            "optim.clip_norm=null",
            "data.image.min_pixels=null",
            "optim.weight_decay=1e22",
        ],
        [
            "data.validation=[]",
            "evaluation.every_steps=null",
            "data.drop_model_inputs=[attention_mask]",
        ],
        ["data.train=[{format: digits, split: train}, {format: digits, split: validation}]"],
        ["engine={kind: ddp, gradient_as_bucket_view: true}", "checkpoint.resume=never"],
    ],
    ids=str,
)
def test_numbers_nulls_and_lists_stay_what_they_were(overrides: list[str], tmp_path: Path) -> None:
    loaded = load_run("digits", overrides)
    (tmp_path / "again.yaml").write_text(effective_yaml(loaded), encoding="utf-8")
    assert load_run(str(tmp_path / "again.yaml")).run == loaded.run


def test_what_was_a_reference_is_written_as_what_it_led_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "/data/a b")
    written = effective_yaml(
        load_run("digits", ["run.name=${optim.name}", "run.dir=${oc.env:WHERE}"])
    )
    settings = yaml.safe_load(written)
    assert (settings["run"]["name"], settings["run"]["dir"]) == ("adamw", "/data/a b")


@pytest.mark.parametrize("override", ["run.dir=", "model.path="])
def test_an_empty_path_is_refused_rather_than_taken_for_the_default(override: str) -> None:
    with pytest.raises(Findings) as caught:
        load_run("digits", [override])
    assert [(finding.rule, finding.parameter) for finding in caught.value.diagnostics] == [
        ("out-of-range", override.rstrip("="))
    ]


def test_a_mark_of_direction_is_escaped_and_stays_what_it_was(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text('defaults: [digits, _self_]\nrun: {name: "\\u202Eabc\\u2067"}\n')
    loaded = load_run(str(recipe))
    shown = effective_yaml(loaded)
    assert shown.isascii()
    recipe.write_text(shown)
    assert load_run(str(recipe)).run.run.name == "\u202eabc\u2067"
