"""Compare the patches of each family with those of transformers' torchvision classes.

Run beside torchvision. The reference is the class itself, called as a server calls it.
"""

from dataclasses import asdict

import numpy as np
import torch
import transformers
from PIL import Image

from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.models.patches import byte_values, image_bytes, image_patches
from vtool.models.video import video_processor

SIZES = ((100, 70), (640, 480), (37, 300), (28, 28))
random = np.random.default_rng(1)


def picture(width: int, height: int) -> Image.Image:
    pixels = random.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height))


def compare(name: str) -> None:
    family = load_family(name)
    facts = family.facts
    ours = family.image_processor_class("torchvision")(**asdict(facts.patches))
    theirs = getattr(transformers, facts.image_processor)(**asdict(facts.patches))
    for size in SIZES:
        image = picture(*size)
        wanted = theirs(images=[image], return_tensors="pt")
        patches, grid = image_patches(ours, image)
        assert list(grid) == wanted["image_grid_thw"][0].tolist(), (name, size)
        assert torch.equal(patches, wanted["pixel_values"]), (name, size)
        raw, _ = image_bytes(ours, image)
        table = byte_values(ours)
        assert table is not None
        assert raw.dtype == torch.uint8
        assert torch.equal(table.of(raw), wanted["pixel_values"]), (name, size)
    videos = video_processor(family, {}, "torchvision")
    their_videos = getattr(transformers, facts.video_processor)(**videos.as_json())
    for count in (2, 4, 5):
        frames = [picture(200, 150) for _ in range(count)]
        stacked = torch.from_numpy(np.stack([np.asarray(frame) for frame in frames]))
        wanted = their_videos(
            videos=[stacked.permute(0, 3, 1, 2)], do_sample_frames=False, return_tensors="pt"
        )
        patches, grid = videos.cut(frames)
        assert list(grid) == wanted["video_grid_thw"][0].tolist(), (name, count)
        assert torch.equal(patches, wanted["pixel_values_videos"]), (name, count)
        raw, _ = videos.cut(frames, as_bytes=True)
        table = byte_values(videos.frames)
        assert table is not None
        assert torch.equal(table.of(raw), wanted["pixel_values_videos"]), (name, count)
    # the size that is planned with is the size that is made
    tall, wide = videos.size(count, 150, 200)
    side = videos.frames.patch_size
    assert [tall // side, wide // side] == list(grid[1:]), name


for each in FAMILIES:
    compare(each)
print(f"{len(FAMILIES)} families: equal to the bit")
