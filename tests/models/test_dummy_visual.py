"""The dummy visual forward:

gradients of exactly 0 for the tower, and nothing else that differs, in every family.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.each_family import EACH_FAMILY
from tests.models.tiny import IDS, VOCABULARY, text_loss, tiny_model
from tests.runs import gradients
from vtool.families.family import load_family
from vtool.models.dummy_visual import dummy_visual_forward, dummy_visual_term
from vtool.releases import enable_checkpointing

EACH = pytest.mark.parametrize("name", EACH_FAMILY)
CPU = torch.device("cpu")


@contextmanager
def hooked(model: Any, change: Any) -> Iterator[None]:
    hook = model.get_input_embeddings().register_forward_hook(change)
    try:
        yield
    finally:
        hook.remove()


def taken(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch of text, and what it leaves in the gradients."""
    model.zero_grad(set_to_none=True)
    loss = text_loss(model)
    loss.backward()
    return loss.detach(), gradients(model)


def with_dummy(name: str, model: Any) -> tuple[Tensor, dict[str, Tensor]]:
    with dummy_visual_forward(load_family(name), model):
        return taken(model)


def check_zero_in_the_tower_and_the_same_elsewhere(name: str, model: Any) -> None:
    loss, plain = taken(model)
    same, ours = with_dummy(name, model)
    tower = {key for key, _ in model.named_parameters() if key.startswith("model.visual.")}
    assert math.isfinite(same)
    assert torch.equal(loss, same)
    assert ours.keys() - plain.keys() == tower
    assert not tower & plain.keys()
    for key, gradient in ours.items():
        assert torch.equal(gradient, torch.zeros_like(gradient) if key in tower else plain[key]), (
            key
        )


@EACH
def test_the_tower_gets_zeros_and_the_rest_what_it_had_to_the_bit(name: str) -> None:
    model = tiny_model(name)
    with torch.no_grad():
        model.get_input_embeddings().weight[10] = -0.0  # −0.0 + 0.0 would be 0.0
    check_zero_in_the_tower_and_the_same_elsewhere(name, model)
    assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())


@EACH
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_tower_that_computes_nan_reaches_nothing(name: str, recomputed: bool) -> None:
    model = tiny_model(name)
    if recomputed:
        enable_checkpointing(model)
    visual = model.model.visual
    with torch.no_grad():
        visual.patch_embed.proj.weight.flatten()[0] = math.inf  # inf · 0, and all behind it is NaN
        visual.blocks[1].norm1.weight[0] = math.nan
    pixels, grid = load_family(name).smallest_image(model, CPU).values()
    assert not all(
        term.isfinite().all()
        for term in load_family(name).features(visual_output(model, pixels, grid))
    )
    check_zero_in_the_tower_and_the_same_elsewhere(name, model)


def visual_output(model: Any, pixels: Tensor, grid: Tensor) -> Any:
    return model.model.get_image_features(pixels, grid, return_dict=True)


def test_a_sum_times_zero_would_not_do() -> None:
    """The control: what the tests above catch."""
    model = tiny_model("qwen3_vl")
    pixels, grid = load_family("qwen3_vl").smallest_image(model, CPU).values()

    def times_zero(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
        return embedded + 0.0 * visual_output(model, pixels, grid).pooler_output[0].sum()

    with hooked(model, times_zero):
        # one term of several
        assert not any(key.startswith("model.visual.deepstack") for key in taken(model)[1])
        with torch.no_grad():
            model.model.visual.merger.norm.bias[0] = math.nan
        assert taken(model)[0].isnan()


def test_the_weights_of_a_sum_that_is_cut_off_alone_would_still_get_nan() -> None:
    """A constant in the place of the sum keeps the loss clean;

    zeros times what is not finite, inside the tower, are NaN again.
    """
    model = tiny_model("qwen2_5_vl")
    visual = model.model.visual
    with torch.no_grad():
        visual.blocks[1].mlp.down_proj.weight[0, 0] = math.inf
    pixels, grid = load_family("qwen2_5_vl").smallest_image(model, CPU).values()
    (feature,) = visual_output(model, pixels, grid).pooler_output
    feature.backward(torch.zeros_like(feature))
    assert any(not parameter.grad.isfinite().all() for parameter in visual.parameters())
    check_zero_in_the_tower_and_the_same_elsewhere("qwen2_5_vl", model)


@EACH
def test_a_pass_that_fails_leaves_the_weights_where_they_were(name: str) -> None:
    model = tiny_model(name)
    before = dict(model.named_parameters())

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    hook = model.model.visual.blocks[0].mlp.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        dummy_visual_term(load_family(name), model, CPU)
    hook.remove()
    assert all(parameter is before[key] for key, parameter in model.named_parameters())
    check_zero_in_the_tower_and_the_same_elsewhere(name, model)


@EACH
def test_an_addition_in_place_would_raise_or_write_into_what_others_hold(name: str) -> None:
    """With a frozen embedding, and a model made to give gradients to its inputs, as for
    adapters, its output is a leaf.
    """
    model = tiny_model(name)
    model.get_input_embeddings().weight.requires_grad_(False)

    def in_place(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
        embedded += dummy_visual_term(load_family(name), model, CPU) + 1  # 1 shows where it goes
        return embedded

    held: list[Tensor] = []
    model.get_input_embeddings().register_forward_hook(
        lambda _m, _i, embedded: held.append(embedded)
    )
    text_loss(model)
    with hooked(model, in_place):
        text_loss(model)
    assert not torch.equal(held[1], held[0])  # whoever held the embeddings has others now
    held.clear()
    model.enable_input_require_grads()
    with hooked(model, in_place), pytest.raises(RuntimeError, match="in-place"):
        text_loss(model)
    check_zero_in_the_tower_and_the_same_elsewhere(name, model)
    assert all(torch.equal(embedded, held[0]) for embedded in held)


@EACH
def test_the_smallest_image_is_of_the_towers_own_patches(name: str) -> None:
    """Patches have another size than the family's: nothing of it is written down."""
    from transformers import AutoModelForImageTextToText

    config = load_family(name).random_config("tiny", VOCABULARY, IDS)
    config.vision_config.patch_size, config.vision_config.temporal_patch_size = 6, 4
    model = AutoModelForImageTextToText.from_config(config).train()
    pixels, grid = load_family(name).smallest_image(model, CPU).values()
    assert pixels.shape == (4, 3 * 4 * 6 * 6)
    assert {
        len(term) for term in load_family(name).features(visual_output(model, pixels, grid))
    } == {1}
    check_zero_in_the_tower_and_the_same_elsewhere(name, model)


@EACH
def test_what_is_frozen_gets_no_gradient(name: str) -> None:
    model = tiny_model(name)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(load_family(name).component(key) != "vision")
    _, ours = with_dummy(name, model)
    assert {load_family(name).component(key) for key in ours} == {"projector", "language"}
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(load_family(name).component(key) == "language")
    _, ours = with_dummy(name, model)
    assert {load_family(name).component(key) for key in ours} == {"language"}
