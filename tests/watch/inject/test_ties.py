"""Tied heads, and configs that say so: freshly built models are as they say."""

from pathlib import Path

import pytest
import torch

from tests.watch.runs import loop, weights
from tests.watch.runs.loop import Recipe
from vtool.watch.inject.vtool_watch.model import _is_tie_meant, _is_tied, find_models


def seen(model: torch.nn.Module) -> tuple[bool, bool | None]:
    (found,) = find_models({id(parameter) for parameter in model.parameters()})
    return _is_tied(found), _is_tie_meant(found)


@pytest.mark.parametrize("family", loop.FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_new_model_is_as_its_config_says(tmp_path: Path, family: str, tied: bool) -> None:
    recipe = Recipe(family=family, config={"tie_word_embeddings": tied})
    assert seen(loop.build(recipe, tmp_path)) == (tied, tied)


def test_a_head_that_is_otherwise_is_seen(tmp_path: Path) -> None:
    tied = Recipe(config={"tie_word_embeddings": True}, built=weights.untie)
    assert seen(loop.build(tied, tmp_path)) == (False, True)
    assert seen(loop.build(Recipe(built=weights.tie), tmp_path)) == (True, False)


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_of_two_configs_that_disagree_nothing_is_concluded(
    tmp_path: Path, outer: bool, inner: bool
) -> None:
    """Releases of transformers ask another one: of this model one of them is not what it does."""
    model = loop.build(Recipe(image=True, vision=True), tmp_path)
    model.config.tie_word_embeddings = outer
    model.config.text_config.tie_word_embeddings = inner
    assert seen(model)[1] == (outer if outer == inner else None)


def test_of_a_frozen_pair_nothing_is_concluded(tmp_path: Path) -> None:
    model = loop.build(Recipe(built=weights.tie), tmp_path)
    model.lm_head.weight.requires_grad_(False)
    assert seen(model) == (True, None)


def test_a_tie_that_the_config_denies_loses_the_head(tmp_path: Path) -> None:
    """The rule says so of what transformers saves and loads."""
    model = loop.build(Recipe(built=weights.tie), tmp_path)
    model.save_pretrained(tmp_path / "saved")
    loaded = type(model).from_pretrained(tmp_path / "saved")
    assert torch.equal(loaded.model.embed_tokens.weight, model.lm_head.weight)
    assert not torch.equal(loaded.lm_head.weight, model.lm_head.weight)
