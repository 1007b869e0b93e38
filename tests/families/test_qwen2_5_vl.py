"""Qwen2.5-VL."""

from tests.families import own
from vtool.families import FAMILIES
from vtool.families.facts import PatchSizes

NAME = "qwen2_5_vl"


def test_images_are_cut_into_patches_of_14() -> None:
    assert FAMILIES[NAME].patches == PatchSizes(14, 2, 2)
    assert FAMILIES[NAME].patches.pixels_per_token == 784


def test_an_even_number_of_frames_is_shown_as_one_run_of_tokens() -> None:
    assert own.frames_shown(NAME) == [0, 5, 10, 15, 20, 25]
    assert own.text_of_four_frames(NAME) == "<|video_pad|>"


def test_the_merger_is_the_projector() -> None:
    assert own.components(NAME, "merger.mlp.0", "blocks.0.mlp.up_proj") == ["projector", "vision"]
    assert "merger.mlp.0" in own.layers_named_in_help(NAME)


def test_megatron_has_its_layers_and_rows_can_be_packed() -> None:
    assert own.refused_by_rules(NAME) == []
