"""The JSON schema of recipes: what an editor would flag, and what it must let be."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from typer.testing import CliRunner

from vtool.cli.app import app
from vtool.config.json_schema import recipe_schema
from vtool.config.load import effective_yaml, load_run
from vtool.config.settings import all_settings
from vtool.config.shipped import recipe_names, shipped_folder

FILE = shipped_folder("configs") / "recipe.schema.json"
SCHEMA = recipe_schema()
VALIDATOR = Draft7Validator(SCHEMA)


def flagged(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))]


def test_the_shipped_file_is_what_the_command_prints() -> None:
    """Renew it: make goldens"""
    printed = CliRunner().invoke(app, ["validate-config", "--json-schema"])
    assert printed.exit_code == 0
    assert printed.stdout == FILE.read_text(encoding="utf-8")
    Draft7Validator.check_schema(json.loads(printed.stdout))


@pytest.mark.parametrize("name", recipe_names())
def test_a_shipped_recipe_fits_and_names_the_schema(name: str) -> None:
    file = shipped_folder("recipes") / f"{name}.yaml"
    text = file.read_text(encoding="utf-8")
    assert flagged(text) == []
    marked = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (file.parent / marked).resolve() == FILE


@pytest.mark.parametrize("name", ["digits", "digits_fsdp2", "digits_lora", "digits_megatron"])
def test_the_settings_in_force_fit(name: str) -> None:
    assert flagged(effective_yaml(load_run(name))) == []


@pytest.mark.parametrize(
    "text",
    [
        # the tag stands in another file
        "defaults: [digits, {override /engine: fsdp2}, _self_]\nengine: {cpu_offload: true}",
        "defaults: [digits]\nengine: {ddp_config: {bucket_size: 9}}",
        "defaults: [runai]\nslots: 2",  # of the kind of what it extends
        "optim:\n  lr: ???\n  warmup_steps: ${train.steps}\nmodel: ???",
        "kind: sft\nlora: null\ntrain: {steps: null, epochs: 2}",
        "kind: sft\nlora: {}",
        "data: {train: [{format: messages, path: a.jsonl}, {format: digits, split: test}]}",
        "data: {train: '${data.test}'}",
    ],
)
def test_what_composition_can_make_whole_is_let_be(text: str) -> None:
    assert flagged(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "kind: sft\noptim: {lrr: 1}",
        "kind: sft\nnothing: 1",
        "kind: load_check\noptim: {lr: 1}",
        "kind: load_chek",
        "optim: {lr: -1}",
        "optim: {lr: fast}",
        "optim: {betas: [0.9, 1.0]}",
        "optim: {betas: [0.9, 0.9, 0.9]}",
        "optim: 3",
        "engine: {kind: fsdp}",
        "engine: {reshard: true}",
        "train: {steps: 1.5}",
        "data: {train: [{format: messages}]}",
        "data: {train: [{format: digits, path: x}]}",
        "data: {train: []}",
        "defaults: digits",
        "defaults: [[digits]]",
    ],
)
def test_what_no_composition_can_put_right_is_flagged(text: str) -> None:
    assert flagged(text)


def test_every_setting_says_what_it_is_for_where_the_mouse_rests() -> None:
    def described(schema: dict[str, Any], names: list[str]) -> str:
        """The text of a setting, found as an editor finds it:

        by following references and options.
        """
        if not names:
            return str(schema.get("description") or _follow(schema).get("description"))
        for option in _options(schema):
            if names[0] in option.get("properties", {}):
                return described(option["properties"][names[0]], names[1:])
        raise AssertionError(f"{names[0]} is not there")

    for setting in all_settings():
        if setting.doc:
            text = described(SCHEMA["definitions"]["kind_sft"], setting.name.split("."))
            assert text not in ("None", ""), setting.name
            if not setting.groups:
                assert " ".join(setting.doc.split()) in text or text.startswith("A "), setting.name


def _follow(schema: dict[str, Any]) -> dict[str, Any]:
    return next(iter(_options(schema)), {})


def _options(schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in schema:
        return _options(SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return [found for option in schema["anyOf"] for found in _options(option)]
    return _options(schema["items"]) if isinstance(schema.get("items"), dict) else [schema]


def test_a_wheel_has_it_next_to_the_recipes() -> None:
    assert (Path(shipped_folder("recipes")) / "../configs/recipe.schema.json").is_file()
