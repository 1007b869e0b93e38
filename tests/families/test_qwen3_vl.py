"""Qwen3-VL, and what its variant with experts shares with it."""

import pytest

from tests.families import own
from vtool.families import FAMILIES
from vtool.families.facts import PatchSizes

NAME = "qwen3_vl"
both = pytest.mark.parametrize("name", [NAME, "qwen3_vl_moe"])


@both
def test_images_are_cut_into_patches_of_16(name: str) -> None:
    assert FAMILIES[name].patches == PatchSizes(16, 2, 2)
    assert FAMILIES[name].patches.pixels_per_token == 1024


@both
def test_frames_from_the_first_to_the_last_are_shown_in_pairs_with_their_time(name: str) -> None:
    assert own.frames_shown(name) == [0, 6, 12, 17, 23, 29]
    run = "<|vision_start|><|video_pad|><|vision_end|>"
    assert own.text_of_four_frames(name) == f"<0.2 seconds>{run}<0.8 seconds>{run}"


@both
def test_deepstacks_mergers_belong_to_the_projector(name: str) -> None:
    found = own.components(name, "merger.norm", "deepstack_merger_list.0.norm", "blocks.0.norm1")
    assert found == ["projector", "projector", "vision"]
    assert "linear_fc1" in own.layers_named_in_help(name)


@both
def test_megatron_does_not_have_its_layers_and_rows_can_be_packed(name: str) -> None:
    assert own.refused_by_rules(name) == ["megatron"]
