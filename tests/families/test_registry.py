"""A family is registered everywhere or nowhere."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
import transformers
import yaml

from vtool.config.schema import Model
from vtool.families import FAMILIES
from vtool.families.family import Family, load_family
from vtool.watch.inject.vtool_watch.mrope import MODEL_TYPES

ROOT = Path(__file__).parents[2]
WITHOUT_MROPE: set[str] = set()
"""Families whose images have other positions than Qwen2-VL's: the watch does not compare them."""


def folders() -> set[str]:
    return {file.parent.name for file in (ROOT / "vtool/families").glob("*/facts.py")}


def model_files() -> set[str]:
    files = (ROOT / "configs/model").glob("*.yaml")
    return {yaml.safe_load(file.read_text())["family"] for file in files}


def own_tests() -> set[str]:
    files = (ROOT / "tests/families").glob("test_*.py")
    named = {file: re.findall(r'^NAME = "(\w+)"$', file.read_text(), re.M) for file in files}
    assert all(
        [file.stem] == [f"test_{name}" for name in names] for file, names in named.items() if names
    )
    return {name for names in named.values() for name in names}


def documented() -> set[str]:
    lines = (ROOT / "docs/families.md").read_text().splitlines()
    rows = lines[lines.index("|---|---|---|---|") + 1 :]
    return {row.split("`")[1] for row in rows[: rows.index("")]}


def choices() -> set[str]:
    return set(get_args(Model.model_fields["family"].annotation))


@pytest.mark.parametrize("named", [folders, model_files, own_tests, documented, choices])
def test_every_family_of_the_registry_is_there_and_no_other(named: Callable[[], set[str]]) -> None:
    assert named() == set(FAMILIES)


def test_the_watch_knows_the_positions_of_every_family() -> None:
    """The watch has a list of its own: in a process of others it imports nothing of vtool."""
    assert set(FAMILIES) - set(MODEL_TYPES) == WITHOUT_MROPE


@pytest.mark.parametrize("name", FAMILIES)
def test_facts_and_code_are_of_one_folder_and_one_transformers_model(name: str) -> None:
    facts = FAMILIES[name]
    assert facts is import_module(f"vtool.families.{name}.facts").FACTS
    assert facts.name == name
    assert facts.implementation.partition(":")[0] == f"vtool.families.{name}.model"
    family = load_family(name)
    assert type(family) is not Family
    assert isinstance(family, Family)
    assert family.facts is facts
    assert family.model_class().config_class.model_type == name


@pytest.mark.parametrize("name", FAMILIES)
def test_the_processors_of_a_family_are_transformers_own(name: str) -> None:
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    facts = FAMILIES[name]
    assert facts.processor == PROCESSOR_MAPPING_NAMES[name]
    assert hasattr(transformers, facts.image_processor)
    assert hasattr(transformers, facts.video_processor)


def test_the_facts_import_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, vtool.families, vtool.families.images, vtool.families.windows,"
        " vtool.families.linear_layers, vtool.families.modeling_file;"
        " print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
