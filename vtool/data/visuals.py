"""Images and videos of a row: cut into patches, and placed among its tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vtool.data.media import load_picture, picture_errors
from vtool.data.row import Row, refuse
from vtool.data.video import Clip
from vtool.models.patches import ByteValues, byte_values, image_bytes, image_patches
from vtool.models.processor import Processor

PIXELS = ("pixel_values", "pixel_values_videos")
"""The model's inputs that are patches: of images, and of videos."""


@dataclass(frozen=True, slots=True)
class Visuals:
    """The inputs that a row's images and videos are to the model."""

    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    """By the model's names. Of the families here, with patches of width W: `pixel_values` and
    `pixel_values_videos`, float32 [P, W], or bytes, of which `byte_values` makes these;
    `image_grid_thw` and `video_grid_thw`, int64 [I, 3], patches along time, height and width;
    `second_per_grid_ts`, float32 [V], where the model asks for it. Of others, what transformers'
    processor gives.
    """
    images: int = 0
    """Images, as the model is given them: frames of a video are some where it takes them so."""
    videos: int = 0
    tokens: Mapping[str, Tensor] = field(default_factory=dict)
    """More inputs with an entry a token [L]: token types of another family's processor."""


@dataclass(frozen=True, slots=True)
class Visual:
    """An image or a video, cut into patches."""

    kind: str
    pixels: Tensor
    grid: tuple[int, int, int]
    runs: tuple[int, ...]
    """The features, for each token that stands for them in the text."""
    token: int
    seconds: float = 0.0
    traits: tuple[str, ...] = ()


def visuals_of(
    row: Row,
    clips: Sequence[Clip],
    processor: Processor,
    *,
    measure: bool = False,
    as_bytes: bool = False,
) -> Iterator[Visual]:
    """Yield a row's images and videos in the order in which they are shown."""
    _image: Any = partial(_cut_image, as_bytes=as_bytes)
    if row.videos:
        as_bytes = as_bytes and _go_together(processor)
    if measure and processor.image_processor.do_resize:
        _image = _measured_image
    images, videos = iter(row.images), iter(clips)
    for kind in row.visuals():
        if kind == "image" and (image := next(images, None)) is not None:
            yield _image(row, image, processor)
        elif kind == "video" and (clip := next(videos, None)) is not None:
            yield _video(row, clip, processor, as_bytes)
    # What the messages do not place: each is one more than there are tokens.
    yield from (_image(row, image, processor) for image in images)
    yield from (_video(row, clip, processor, as_bytes) for clip in videos)


def _measured_image(row: Row, image: Any, processor: Processor) -> Visual:
    """Return an image without its pixels: as many patches as it would be cut into."""
    with picture_errors(row, image, "broken-image", "its image", processor.pictures):
        (width, height), traits = processor.pictures.measure(image)
    cutter = processor.image_processor
    try:
        patches = cutter.get_number_of_image_patches(height, width, {})
    except ValueError as error:  # an extreme aspect ratio
        raise refuse("broken-image", f"{row.id}: {error}", row.origin) from error
    pixels = torch.empty((patches, 0), device="meta")
    features = patches // cutter.merge_size**2
    token = processor.ids.image
    # no grid: what has no pixels goes into no model
    return Visual("image", pixels, (1, patches, 1), (features,), token, traits=traits)


def _cut_image(row: Row, image: Any, processor: Processor, *, as_bytes: bool = False) -> Visual:
    picture, traits = load_picture(row, image, "broken-image", "its image", processor.pictures)
    try:
        cut = image_bytes if as_bytes else image_patches
        pixels, (t, h, w) = cut(processor.image_processor, picture)
    except ValueError as error:  # an image processor refuses an extreme aspect ratio
        raise refuse("broken-image", f"{row.id}: {error}", row.origin) from error
    # The vision tower merges merge_size² patches into one feature.
    features = t * h * w // processor.image_processor.merge_size**2
    token = processor.ids.image
    return Visual("image", pixels, (t, h, w), (features,), token, traits=traits)


def _go_together(processor: Processor) -> bool:
    """Return whether bytes of videos can be kept: where these are images, they need one table."""
    if not processor.family.facts.videos_are_images:
        return True
    values = byte_values(processor.image_processor)
    return values is not None and values.equals(byte_values(processor.video.frames))


def _video(row: Row, clip: Clip, processor: Processor, as_bytes: bool) -> Visual:
    video, family = processor.video, processor.family
    try:
        pixels, (t, h, w) = video.cut(clip.frames, as_bytes=as_bytes)
    except ValueError as error:  # an extreme aspect ratio
        raise refuse("broken-video", f"{row.id}: {error}", row.origin) from error
    features = h * w // video.frames.merge_size**2
    runs = (features,) * t if family.facts.separate_frames else (t * features,)
    token = processor.ids.image if family.facts.videos_are_images else processor.ids.video
    return Visual(
        "video",
        pixels,
        (t, h, w),
        runs,
        token,
        clip.seconds_per_grid(video.frames_per_patch),
        clip.traits,
    )


def expand_placeholders(
    ids: Sequence[int],
    labels: Sequence[int],
    row: Row,
    visuals: Iterator[Visual],
    processor: Processor,
    *,
    whole: bool = True,
) -> tuple[list[int], list[int], Visuals]:
    """Repeat each token that stands for features as often as there are features.

    Args:
        whole: false where ids end before the row does, and images and videos behind them are left
            alone.
    """
    marks = {processor.ids.image: "image", processor.ids.video: "video"}
    if marks.keys().isdisjoint(ids):  # text alone: nothing to look for
        if whole and next(visuals, None):
            raise _mismatch(row, ids, marks)
        return list(ids), list(labels), Visuals()
    out_ids: list[int] = []
    out_labels: list[int] = []
    taken: list[Visual] = []
    runs: Iterator[tuple[int, int]] = iter(())
    for token, label in zip(ids, labels, strict=True):
        times = 1
        if token in marks:
            if (run := next(runs, None)) is None and (visual := next(visuals, None)) is not None:
                taken.append(visual)
                runs = iter([(visual.token, count) for count in visual.runs])
                run = next(runs)
            if run is None or run[0] != token:
                raise _mismatch(row, ids, marks)
            times = run[1]
        out_ids += [token] * times
        out_labels += [label] * times
    if next(runs, None) or (whole and next(visuals, None)):
        raise _mismatch(row, ids, marks)
    return out_ids, out_labels, _joined(taken, processor)


def _mismatch(row: Row, ids: Sequence[int], marks: dict[int, str]) -> Exception:
    given = {"image": len(row.images), "video": len(row.videos)}
    counts = [
        f"{sum(token == mark for token in ids)} {kind} tokens for {given[kind]} {kind}s"
        for mark, kind in marks.items()
        if kind == "image" or given[kind] or mark in ids
    ]
    ordered = ", or in another order" if row.images and row.videos else ""
    return refuse(
        "image-token-mismatch",
        f"{row.id}: the chat template wrote {' and '.join(counts)}{ordered}",
        row.origin,
    )


def _joined(visuals: Sequence[Visual], processor: Processor) -> Visuals:
    family = processor.family
    images: list[Visual] = []
    videos: list[Visual] = []
    for visual in visuals:
        (images if visual.kind == "image" or family.facts.videos_are_images else videos).append(
            visual
        )
    given: dict[str, Tensor] = {}
    # Of a video taken as images each patch along time is one; an image has one such patch.
    grids = [(1, h, w) for t, h, w in (visual.grid for visual in images) for _ in range(t)]
    if images:
        given |= {
            PIXELS[0]: _joined_pixels(PIXELS[0], images, processor),
            "image_grid_thw": torch.tensor(grids),
        }
    if videos:
        given |= {
            PIXELS[1]: _joined_pixels(PIXELS[1], videos, processor),
            "video_grid_thw": torch.tensor([visual.grid for visual in videos]),
        }
        if family.facts.seconds_per_grid:
            given["second_per_grid_ts"] = torch.tensor([visual.seconds for visual in videos])
    return Visuals(given, len(grids), len(videos))


def _joined_pixels(name: str, visuals: Sequence[Visual], processor: Processor) -> Tensor:
    return joined_pixels(name, [visual.pixels for visual in visuals], processor)


def joined_pixels(name: str, pixels: Sequence[Tensor], processor: Processor) -> Tensor:
    """Return patches one after the other: bytes where all are, else floats.

    Args:
        name: the model's input that they are, a key of `tables`.
        pixels: uint8 or float32 [P, W] each; bytes of images may have one frame.
    """
    if len(pixels) == 1:  # one need not be copied
        return pixels[0]
    if len({(one.dtype, one.shape[1]) for one in pixels}) > 1:
        values = tables(processor)[name]
        assert values is not None, "there are bytes"
        narrow = all(one.dtype == torch.uint8 for one in pixels)
        change = values.repeated if narrow else values.of
        pixels = [change(one) if one.dtype == torch.uint8 else one for one in pixels]
    return torch.cat(list(pixels))


def tables(processor: Processor) -> dict[str, ByteValues | None]:
    """Return, by a model input's name, the table of the values that its bytes stand for."""
    cutters = (processor.image_processor, processor.video.frames)
    return {name: byte_values(cutter) for name, cutter in zip(PIXELS, cutters, strict=True)}
