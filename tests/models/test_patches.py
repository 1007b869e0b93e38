"""Patches by a table of bytes are those of transformers' image processor."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.each_family import EACH_FAMILY
from vtool.families.family import load_family
from vtool.models import patches
from vtool.models.patches import byte_values, image_bytes, image_patches

SIZES = [(1, 1), (5, 900), (28, 28), (57, 83), (224, 224), (333, 127), (1024, 768)]


def picture(size: tuple[int, int], seed: int = 0) -> Any:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def processor_of(family: str, **settings: Any) -> Any:
    return load_family(family).image_processor_class("pil")(**settings)


def same(processor: Any, image: Any) -> bool:
    """Hold patches and grid against a call of the image processor itself."""
    wanted = processor(images=[image], return_tensors="pt")
    values, grid = image_patches(processor, image)
    assert list(grid) == wanted["image_grid_thw"][0].tolist()
    return values.dtype == torch.float32 and torch.equal(values, wanted["pixel_values"])


def uses_table(processor: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    called: list[Any] = []
    whole = patches._whole
    image = picture((60, 60))
    image_patches(processor, image)  # a table is proved first
    monkeypatch.setattr(patches, "_whole", lambda *given: called.append(given) or whole(*given))
    image_patches(processor, image)
    return not called


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_every_family_has_the_patches_of_its_image_processor(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = processor_of(family)
    assert all(same(processor, picture(size, seed)) for seed, size in enumerate(SIZES))
    assert uses_table(processor, monkeypatch)


@pytest.mark.parametrize(
    "settings",
    [
        {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.25, 0.125]},
        {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": 16},
        {"rescale_factor": 1 / 127.5},
        {"merge_size": 1, "temporal_patch_size": 1},
        {"resample": 2},
        {"do_normalize": False},
        {"do_rescale": False},
        {"do_rescale": False, "do_normalize": False},
        {"size": {"shortest_edge": 28 * 28 * 16, "longest_edge": 28 * 28 * 64}},
    ],
)
def test_settings_of_the_image_processor_are_kept(settings: dict[str, Any]) -> None:
    assert same(processor_of("qwen2_5_vl", **settings), picture((150, 210)))


def test_a_setting_that_changes_later_is_seen() -> None:
    processor = processor_of("qwen2_5_vl")
    assert same(processor, picture((60, 90)))
    processor.image_std = [0.5, 0.5, 0.5]
    processor.size = {"shortest_edge": 28 * 28 * 20, "longest_edge": 28 * 28 * 30}
    assert same(processor, picture((60, 90)))


def test_a_class_of_other_steps_cuts_images_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sharper(load_family("qwen2_5_vl").image_processor_class("pil")):  # type: ignore[misc]
        def patchify(self, image: Any, **given: Any) -> Any:
            return super().patchify(image * 1.5, **given)

    processor = Sharper()
    assert same(processor, picture((60, 90)))
    assert not uses_table(processor, monkeypatch)


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_bytes_become_the_floats_of_every_familys_image_processor(family: str) -> None:
    for settings in ({}, {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.25, 0.125]}):
        processor = processor_of(family, **settings)
        values = byte_values(processor)
        assert values is not None
        for seed, size in enumerate(SIZES):
            given, grid = image_bytes(processor, picture(size, seed))
            wanted = processor(images=[picture(size, seed)], return_tensors="pt")
            assert given.dtype == torch.uint8
            assert list(grid) == wanted["image_grid_thw"][0].tolist()
            floats = values.of(given)
            assert floats.dtype == torch.float32
            assert torch.equal(floats, wanted["pixel_values"])
            assert given.nbytes * 8 == floats.nbytes


def test_what_no_table_has_stays_as_floats() -> None:
    processor = processor_of("qwen2_5_vl", do_normalize=False)
    assert byte_values(processor) is None
    given, _ = image_bytes(processor, picture((60, 90)))
    assert given.dtype == torch.float32
    assert torch.equal(given, image_patches(processor, picture((60, 90)))[0])


def test_an_extreme_aspect_ratio_is_refused_by_both_ways() -> None:
    with pytest.raises(ValueError, match="aspect ratio"):
        image_bytes(processor_of("qwen2_5_vl"), picture((3000, 10)))
    for settings in ({}, {"do_normalize": False}):
        with pytest.raises(ValueError, match="aspect ratio"):
            image_patches(processor_of("qwen2_5_vl", **settings), picture((3000, 10)))
