"""Qwen3-VL."""

from tests.families import own
from vtool.families import FAMILIES
from vtool.families.facts import PatchSizes

NAME = "qwen3_vl"


def test_images_are_cut_into_patches_of_16() -> None:
    assert FAMILIES[NAME].patches == PatchSizes(16, 2, 2)
    assert FAMILIES[NAME].patches.pixels_per_token == 1024


def test_frames_from_the_first_to_the_last_are_shown_in_pairs_with_their_time() -> None:
    assert own.frames_shown(NAME) == [0, 6, 12, 17, 23, 29]
    run = "<|vision_start|><|video_pad|><|vision_end|>"
    assert own.text_of_four_frames(NAME) == f"<0.2 seconds>{run}<0.8 seconds>{run}"


def test_deepstacks_mergers_belong_to_the_projector() -> None:
    found = own.components(NAME, "merger.norm", "deepstack_merger_list.0.norm", "blocks.0.norm1")
    assert found == ["projector", "projector", "vision"]
    assert "linear_fc1" in own.layers_named_in_help(NAME)


def test_megatron_does_not_have_its_layers_and_rows_can_be_packed() -> None:
    assert own.refused_by_rules(NAME) == ["megatron"]
