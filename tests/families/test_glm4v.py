"""GLM-4.1V."""

from tests.families import own
from vtool.families import FAMILIES
from vtool.families.facts import PatchSizes

NAME = "glm4v"


def test_images_are_cut_into_patches_of_14() -> None:
    assert FAMILIES[NAME].patches == PatchSizes(14, 2, 2)
    assert FAMILIES[NAME].patches.pixels_per_token == 784


def test_the_frame_at_each_tick_is_shown_in_pairs_as_images_with_their_second() -> None:
    assert own.frames_shown(NAME) == [0, 5, 10, 15, 20, 25]
    run = "<|begin_of_image|><|image|><|end_of_image|>"
    assert own.text_of_four_frames(NAME) == f"{run}0{run}0"


def test_the_convolution_before_the_merger_belongs_to_the_projector() -> None:
    found = own.components(NAME, "merger.proj", "downsample", "blocks.0.norm1")
    assert found == ["projector", "projector", "vision"]
    assert "gate_up_proj" in own.layers_named_in_help(NAME)


def test_megatron_does_not_have_its_layers_and_rows_can_be_packed() -> None:
    assert own.refused_by_rules(NAME) == ["megatron"]
