"""Engines are registered where they are in the schema, and nowhere else."""

import inspect
from pkgutil import resolve_name
from types import ModuleType
from typing import get_args

import pytest

from tests.engines import test_exactness, test_families, test_parity, test_parts
from vtool.config.schema import Run
from vtool.config.settings import choices
from vtool.config.shipped import shipped_folder
from vtool.engines.registry import CHECKS, ENGINES


def kinds() -> set[str]:
    members = get_args(Run.model_fields["engine"].annotation)
    return {choices(member.model_fields["kind"].annotation)[0] for member in members}


def test_the_engines_of_the_schema_are_those_of_the_registry() -> None:
    assert kinds() == set(ENGINES)


def test_each_engine_has_a_file_of_settings() -> None:
    assert {file.stem for file in (shipped_folder("configs") / "engine").glob("*.yaml")} == set(
        ENGINES
    )


@pytest.mark.parametrize("module", [test_exactness, test_families, test_parity, test_parts])
def test_an_engine_whose_parameters_are_torchs_own_is_in_the_tests_of_exactness(
    module: ModuleType,
) -> None:
    """Megatron-core's has tests of its own, in tests/engines/megatron/."""
    assert set(module.ENGINES) == set(ENGINES) - {"megatron"}


@pytest.mark.parametrize("kind", ENGINES)
def test_each_engine_is_built_by_a_function_of_its_inputs(kind: str) -> None:
    if kind == "megatron":
        pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    build = resolve_name(ENGINES[kind])
    assert list(inspect.signature(build).parameters) == ["inputs"]


def test_each_check_is_of_an_engine_and_is_given_its_settings_and_the_ranks() -> None:
    assert set(CHECKS) <= set(ENGINES)
    for name in CHECKS.values():
        parameters = list(inspect.signature(resolve_name(name)).parameters)
        assert parameters[:2] == ["settings", "ranks"]
