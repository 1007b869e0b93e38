"""Videos are sampled, sized and cut as transformers' video processors do it, and stand in the text
as its processors write them.
"""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from tests.each_family import EACH_FAMILY
from tests.rows import frames, picture, visual_rows, write_rows
from tests.runs import encoded, messages, request
from vtool.config.schema import Image as ImageSettings
from vtool.config.schema import Video as VideoSettings
from vtool.data.collate import collate
from vtool.data.video import open_clip
from vtool.diagnostics import Findings
from vtool.families import FAMILIES
from vtool.families.frames import FrameRequest, sample_by_time
from vtool.models.processor import Processor, load_processor
from vtool.models.video import VIDEO_SETTINGS_FILE

EACH = pytest.mark.parametrize("name", EACH_FAMILY)
# Grey levels, over the least of the deviations that colors are divided by: torchvision's resizing
# rounds in other places than PIL's.
LEVELS = 2.5 / 255 / 0.2613


def rows_of(folder: Path, name: str, *more: str) -> Any:
    write_rows(folder / "rows.jsonl", visual_rows(folder))
    small = "data.video={min_pixels:1568,max_pixels:50176}"
    return encoded(
        request(
            "rows",
            messages(folder / "rows.jsonl"),
            f"model.family={name}",
            "data.image.min_pixels=784",
            small,
            *more,
        )
    )


@EACH
def test_a_video_of_one_picture_is_that_picture(tmp_path: Path, name: str) -> None:
    """The image processor lets a picture stand in for each frame of a patch."""
    _, processor = rows_of(tmp_path, name)
    side = 4 * processor.video.frames.patch_size
    still = Image.open(picture(tmp_path / "a.png", side, side))
    cut, grid = processor.video.cut([still] * 4)
    alone = processor.image_processor(images=[still], return_tensors="pt")
    assert grid == (2, 4, 4)
    assert torch.equal(cut, torch.cat([alone["pixel_values"]] * 2))


@EACH
def test_patches_are_where_their_pixels_were(tmp_path: Path, name: str) -> None:
    """Pixel by pixel, with Python's own arithmetic:

    block by block of merged patches, each patch color by color, frame by frame.
    """
    _, processor = rows_of(tmp_path, name)
    own = processor.video.frames
    patch, merge = own.patch_size, own.merge_size
    files = frames(tmp_path, "f", 3, 4 * patch, 2 * patch)
    pictures = [Image.open(tmp_path / file) for file in files]
    cut, grid = processor.video.cut(pictures)
    assert grid == (2, 2, 4)
    # the third is repeated
    levels = [np.asarray(frame, dtype=np.float64) / 255 for frame in (*pictures, pictures[-1])]
    expected = np.empty((2 * 2 * 4, 3, 2, patch, patch))
    places = [
        (t, 0, block, row, column)
        for t in range(2)
        for block in range(2)
        for row in range(merge)
        for column in range(merge)
    ]
    for number, (t, down, across, row, column) in enumerate(places):
        y, x = (down * merge + row) * patch, (across * merge + column) * patch
        for color in range(3):
            for frame in range(2):
                square = levels[2 * t + frame][y : y + patch, x : x + patch, color]
                expected[number, color, frame] = (square - own.image_mean[color]) / own.image_std[
                    color
                ]
    assert np.abs(cut.numpy() - expected.reshape(len(places), -1)).max() < 1e-5


@EACH
def test_a_rate_that_no_file_has_shows_a_frame_at_least_and_all_at_most(
    tmp_path: Path, name: str
) -> None:
    _, processor = rows_of(tmp_path, name)
    for fps in (5e-324, 1e-9, 0.001, 0.003, 0.01):
        picked = processor.video.sample(600, 1.0, fps)
        assert 1 <= len(set(picked)) <= max(600 * fps, 4)
        assert all(0 <= frame < 600 for frame in picked)
    for fps in (60.0, 1e9, 1e300, sys.float_info.max):
        assert sorted(set(processor.video.sample(300, 30.0, fps))) == list(range(300))


def test_ticks_beyond_two_to_a_frame_change_nothing() -> None:
    """Transformers goes through so many (video_processing_glm4v.py, `sample_frames`)."""
    for total in (1, 2, 7, 30, 301):
        for rate in (0.1, 10.0, 23.976, 29.97):
            for fps in (rate / 3, rate, 1.7 * rate, 2 * rate, 2.1 * rate, 3.7 * rate, 100 * rate):
                ticks = range(max(math.floor(total / rate * fps), 1))
                theirs = list(
                    dict.fromkeys(min(total - 1, math.ceil(tick * rate / fps)) for tick in ticks)
                )
                request = FrameRequest(
                    total=total,
                    rate=rate,
                    fps=fps,
                    min_frames=1,
                    max_frames=10**6,
                    max_seconds=10**6,
                    frames_per_patch=1,
                )
                assert sample_by_time(request) == theirs


def test_a_list_is_not_refused_for_its_time_but_for_its_frames(tmp_path: Path) -> None:
    """Three frames of a time-lapse may take an hour.

    300 seconds at GLM-4V's own 2 a second are 600.
    """
    _, plain = rows_of(tmp_path, "glm4v")
    _, slow = rows_of(tmp_path, "glm4v", "data.video.fps=0.003")
    assert plain.video.most_listed_frames(0.003) == slow.video.most_listed_frames(0.003) == 600
    assert plain.video.most_listed_frames(30.0) == 9000
    _, more = rows_of(tmp_path, "glm4v", "data.video.max_frames=601")  # as the finding says
    assert more.video.most_listed_frames(0.003) == 601
    _, fewer = rows_of(tmp_path, "glm4v", "data.video.max_frames=4")
    assert fewer.video.most_listed_frames(0.003) == fewer.video.most_listed_frames(30.0) == 4
    _, other = rows_of(tmp_path, "qwen3_vl")
    assert other.video.most_listed_frames(0.003) == 768


@EACH
def test_what_a_recipe_says_of_videos_is_kept_in_the_folder(tmp_path: Path, name: str) -> None:
    settings = ("data.video.fps=3", "data.video.max_frames=6")
    _, processor = rows_of(tmp_path, name, *settings)
    assert len(processor.video.sample(300, 10.0)) == 6
    processor.save(tmp_path / "saved")
    settings = json.loads((tmp_path / "saved" / VIDEO_SETTINGS_FILE).read_text())
    assert (settings["fps"], settings["size"]) == (
        3.0,
        {"shortest_edge": 1568, "longest_edge": 50176},
    )
    again = reloaded(tmp_path / "saved", name)
    assert again.video.sample(300, 10.0) == processor.video.sample(300, 10.0)
    assert again.video.size(6, 500, 300) == processor.video.size(6, 500, 300)


def reloaded(folder: Path, name: str) -> Processor:
    from vtool.families.family import load_family

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = {
        field: tokenizer.convert_tokens_to_ids(getattr(load_family(name).facts.token_names, part))
        for part, field in load_family(name).facts.token_fields.items()
    }
    (folder / "config.json").write_text(json.dumps({"model_type": name, **ids}))
    return load_processor(folder, name, ImageSettings(), VideoSettings())


def test_a_folder_without_settings_of_videos_has_those_of_its_images(tmp_path: Path) -> None:
    """Transformers reads the first of two files that is there."""
    _, processor = rows_of(tmp_path, "qwen2_5_vl")
    processor.save(tmp_path / "saved")
    (tmp_path / "saved" / VIDEO_SETTINGS_FILE).unlink()
    own = json.loads((tmp_path / "saved/preprocessor_config.json").read_text())
    own["size"] = {"shortest_edge": 3136, "longest_edge": 50176}
    (tmp_path / "saved/preprocessor_config.json").write_text(json.dumps(own))
    video = reloaded(tmp_path / "saved", "qwen2_5_vl").video
    assert (video.min_pixels, video.max_pixels, video.fps) == (3136, 50176, 2.0)
    (tmp_path / "saved" / VIDEO_SETTINGS_FILE).write_text('{"fps": "fast"}')
    with pytest.raises(Findings, match="model-does-not-load"):
        reloaded(tmp_path / "saved", "qwen2_5_vl")


def reference(
    folder: Path, asked: list[dict[str, Any]], sampled: list[dict[str, Any]]
) -> list[list[int]]:
    """Ask this vtool's own transformers, in an interpreter that has torchvision too."""
    interpreter = os.environ.get("VTOOL_VLLM_PYTHON")
    if not interpreter:
        pytest.skip(
            "not run: VTOOL_VLLM_PYTHON is not set to an interpreter that has torchvision (`make"
            " vllm-env` makes one)"
        )
    (folder / "asked.json").write_text(json.dumps(asked))
    (folder / "sampled.json").write_text(json.dumps(sampled))
    (folder / "ours").mkdir()
    (folder / "ours/transformers").symlink_to(Path(transformers.__file__).parent)
    script = Path(__file__).with_name("video_reference.py")
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "ours"),
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [interpreter, str(script), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads((folder / "indices.json").read_text())
    assert answer["transformers"] == transformers.__version__
    found: list[list[int]] = answer["indices"]
    return found


def test_transformers_own_processors_give_the_same(tmp_path: Path) -> None:
    asked, sampled, ours = [], [], []
    for name in FAMILIES:
        as_images = FAMILIES[name].videos_are_images
        for capped in (False,) if as_images else (False, True):
            rows, processor = rows_of(tmp_path, name)
            if capped:  # only a folder can ask for it
                processor = replace(
                    processor,
                    video_processor=replace(processor.video, capped_tokens=3, max_pixels=8192),
                )
                rows = replace(rows, processor=processor)
            folder = tmp_path / f"{name}-{capped}"
            processor.save(folder)
            for index in range(len(rows.rows)):
                row = rows.rows.row(index)
                clips = [open_clip(row, video, processor.video) for video in row.videos]
                described = [
                    {
                        "frames": list(video.source),
                        "total": clip.total,
                        "rate": clip.rate,
                        "indices": list(clip.indices),
                    }
                    for video, clip in zip(row.videos, clips, strict=True)
                ]
                text = processor.tokenizer.apply_chat_template(row.messages, tokenize=False)
                asked.append(
                    {
                        "folder": str(folder),
                        "text": text,
                        "clips": described,
                        "images": list(row.images),
                    }
                )
                ours.append((name, collate([rows.sample(index)], processor).inputs))
            for total, rate in (
                (1, 5.0),
                (2, 30.0),
                (7, 2.0),
                (30, 10.0),
                (90, 29.97),
                (301, 25.0),
                (7193, 23.976),
                (20_000, 24.0),
            ):
                for fps in (None, 0.05, 1.0, 3.7, 23.976, 70.0, 1000.0):
                    # of a single frame Qwen2-VL's divides by zero, and Qwen3-VL's finds no size
                    if total >= 2 or as_images:
                        sampled.append(
                            {
                                "folder": str(folder),
                                "total": total,
                                "rate": rate,
                                "fps": fps,
                                "ours": processor.video.sample(total, rate, fps),
                            }
                        )
    theirs = reference(tmp_path, asked, sampled)
    assert theirs == [one["ours"] for one in sampled]
    for number, (name, inputs) in enumerate(ours):
        with np.load(tmp_path / f"{number}.npz") as made:
            compare(name, inputs, {key: torch.from_numpy(made[key]) for key in made.files})


def compare(name: str, ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert torch.equal(ours["input_ids"], theirs["input_ids"])
    if not FAMILIES[name].videos_are_images:
        assert ours.keys() == theirs.keys()
        for key in ours.keys() - {"pixel_values", "pixel_values_videos"}:
            assert torch.equal(ours[key], theirs[key].to(ours[key].dtype)), key
        for key in ours.keys() & {"pixel_values", "pixel_values_videos"}:
            assert (ours[key] - theirs[key]).abs().max() < LEVELS
        return
    # Frames go as images here: the same patches, in the order of the text.
    types = theirs["mm_token_type_ids"][0].tolist()
    assert (ours["mm_token_type_ids"][0] > 0).tolist() == [kind > 0 for kind in types]
    kinds = [kind for kind, before in zip(types, [0, *types], strict=False) if kind and not before]
    grids = {
        1: rows_in(theirs.get("image_grid_thw")),
        2: [[1, h, w] for t, h, w in rows_in(theirs.get("video_grid_thw")) for _ in range(t)],
    }
    parts = {
        1: split(theirs.get("pixel_values"), grids[1]),
        2: split(theirs.get("pixel_values_videos"), grids[2]),
    }
    ordered = [parts[kind].pop(0) for kind in kinds]
    assert rows_in(ours.get("image_grid_thw")) == [grids[kind].pop(0) for kind in kinds]
    assert not [part for rest in (*parts.values(), *grids.values()) for part in rest]
    if ordered:
        assert (ours["pixel_values"] - torch.cat(ordered)).abs().max() < LEVELS


def rows_in(grids: torch.Tensor | None) -> list[list[int]]:
    found: list[list[int]] = [] if grids is None else grids.tolist()
    return found


def split(pixels: torch.Tensor | None, grids: list[list[int]]) -> list[torch.Tensor]:
    return (
        [] if pixels is None else list(torch.split(pixels, [int(np.prod(grid)) for grid in grids]))
    )
