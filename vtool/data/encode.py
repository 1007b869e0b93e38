"""Encoding of rows: the tensors of one sample."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vtool.config.schema import Data
from vtool.config.schema.data import MOST_TEXT_BYTES
from vtool.data.chat import (
    IGNORED,
    Chat,
    Turn,
    all_texts,
    control_tokens_in,
    render_chat,
    render_prompt,
    render_question,
)
from vtool.data.media import load_picture, picture_errors
from vtool.data.row import Row, refuse
from vtool.data.sources import Rows
from vtool.data.video import Clip, open_clip
from vtool.models.processor import Processor


@dataclass(frozen=True, slots=True)
class Visuals:
    """The vision tower's inputs of a row, by the model's names.

    Shapes: P patches of width W, I images, V videos. Where a model takes videos as images
    (`FamilyFacts.videos_are_images`), frames are among these, an image for each patch along time.
    """

    pixel_values: Tensor | None = None
    """float32 [P, W]"""
    image_grid_thw: Tensor | None = None
    """int64 [I, 3]: patches along time, height and width."""
    pixel_values_videos: Tensor | None = None
    """float32 [P, W]"""
    video_grid_thw: Tensor | None = None
    """int64 [V, 3]."""
    second_per_grid_ts: Tensor | None = None
    """float32 [V]: seconds of a patch along time, where the model asks for them."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that are not None, by name."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: tensor for name, tensor in named if tensor is not None}


@dataclass(frozen=True, slots=True)
class Sample:
    """One row, encoded. Shape: L tokens."""

    index: int
    input_ids: Tensor
    """int64 [L]"""
    labels: Tensor
    """int64 [L]; −100 where nothing is supervised."""
    visuals: Visuals
    turns: tuple[Turn, ...]
    """The supervised turns, before any truncation."""
    answer: int
    """Tokens of the last supervised answer, before any truncation and without its end token."""
    truncated: bool
    cut: int
    """Supervised tokens that the truncation has cost."""
    ends: int
    """Supervised turns whose last token, the end token, is among the labels."""
    traits: tuple[str, ...] = ()
    """Names of `vtool.models.pictures.TRAITS`: the losses of its pictures."""

    @property
    def supervised(self) -> int:
        return int((self.labels != IGNORED).sum())

    @property
    def images(self) -> int:
        """Images and videos, as the vision tower is given them."""
        grids = (self.visuals.image_grid_thw, self.visuals.video_grid_thw)
        return sum(len(grid) for grid in grids if grid is not None)

    @property
    def nbytes(self) -> int:
        return sum(
            tensor.nbytes
            for tensor in (self.input_ids, self.labels, *self.visuals.tensors().values())
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a row to evaluate: everything before its last supervised turn."""

    index: int
    input_ids: Tensor
    visuals: Visuals
    reference: str
    """The text of that turn."""


@dataclass(frozen=True, slots=True)
class _Visual:
    """An image or a video, cut into patches."""

    kind: str
    pixels: Tensor
    grid: tuple[int, int, int]
    runs: tuple[int, ...]
    """The features, for each token that stands for them in the text."""
    token: int
    seconds: float = 0.0
    traits: tuple[str, ...] = ()


def encode_row(
    row: Row, index: int, processor: Processor, settings: Data, *, measure: bool = False
) -> Sample:
    """Encode a row, which has this number in its split.

    Args:
        measure: images are looked at and not cut: their patches are counted, and have no values
            (device meta). That is all that an audit needs, in a twentieth of the time.

    Raises:
        Findings: of the rules VT6xx, naming the row.
    """
    _check_text(row, processor, settings.max_text_bytes)
    clips = _clips(row, processor)
    chat = render_chat(row, processor, _texts(clips, processor))
    shown = list(_visuals(row, clips, processor, measure=measure))
    ids, labels, visuals = _expand(chat.ids, chat.labels, row, iter(shown), processor)
    truncated = settings.max_length is not None and len(ids) > settings.max_length
    cut, ends = 0, len(chat.turns)
    if truncated:
        assert settings.max_length is not None
        cut = sum(label != IGNORED for label in labels[settings.max_length :])
        ends = sum(
            label != IGNORED and after == IGNORED
            for label, after in islice(pairwise([*labels, IGNORED]), settings.max_length)
        )
        ids, labels = _truncate(row, ids, labels, settings.max_length, settings, processor)
    return Sample(
        index,
        torch.from_numpy(np.array(ids, np.int64)),  # four times faster than torch.tensor
        torch.from_numpy(np.array(labels, np.int64)),
        visuals,
        chat.turns,
        chat.answer,
        truncated,
        cut,
        ends,
        tuple(trait for visual in shown for trait in visual.traits),
    )


def encode_prompt(rows: Rows, index: int, processor: Processor) -> Prompt:
    """Encode what is before row `index`'s last supervised turn.

    The row has been audited, so it has one.
    """
    row = rows.row(index)
    clips = _clips(row, processor)
    ids, reference = render_prompt(row, processor, _texts(clips, processor))
    # The template has put a placeholder where each image of the *prompt* is; later turns' images
    # are not part of it.
    expanded, _, visuals = _expand(
        ids, ids, row, _visuals(row, clips, processor), processor, whole=False
    )
    return Prompt(index, torch.tensor(expanded), visuals, reference)


def encode_question(row: Row, processor: Processor) -> Prompt:
    """Encode a chat that waits for an answer.

    Raises:
        Findings: of the rules VT6xx.
    """
    _check_text(row, processor)
    clips = _clips(row, processor)
    ids = render_question(row, processor, _texts(clips, processor))
    expanded, _, visuals = _expand(ids, ids, row, _visuals(row, clips, processor), processor)
    return Prompt(0, torch.tensor(expanded), visuals, reference="")


def _check_text(row: Row, processor: Processor, most_bytes: int = MOST_TEXT_BYTES) -> None:
    texts = all_texts(row)
    if sum(map(len, texts)) * 4 > most_bytes and (size := _bytes(texts)) > most_bytes:
        raise refuse(
            "too-much-text",
            f"{row.id} has {size:,} bytes of text; data.max_text_bytes is {most_bytes:,}",
            row.origin,
            parameter="data.max_text_bytes",
        )
    if found := control_tokens_in(row, processor):
        raise refuse(
            "control-token-in-text", f"{row.id}: the text contains {', '.join(found)}", row.origin
        )


def _bytes(texts: Sequence[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def _clips(row: Row, processor: Processor) -> list[Clip]:
    return [open_clip(row, video, processor.video, processor.pictures) for video in row.videos]


def _texts(clips: Sequence[Clip], processor: Processor) -> list[str]:
    video = processor.video
    return (
        [
            video.family.video_text(
                processor.names, clip.indices, clip.rate, video.frames_per_patch
            )
            for clip in clips
        ]
        if clips
        else []
    )


def _visuals(
    row: Row, clips: Sequence[Clip], processor: Processor, *, measure: bool = False
) -> Iterator[_Visual]:
    """Yield a row's images and videos in the order in which they are shown."""
    _image = _measured_image if measure and processor.image_processor.do_resize else _cut_image
    images, videos = iter(row.images), iter(clips)
    for kind in row.visuals():
        if kind == "image" and (image := next(images, None)) is not None:
            yield _image(row, image, processor)
        elif kind == "video" and (clip := next(videos, None)) is not None:
            yield _video(row, clip, processor)
    # What the messages do not place: each is one more than there are tokens.
    yield from (_image(row, image, processor) for image in images)
    yield from (_video(row, clip, processor) for clip in videos)


def _measured_image(row: Row, image: Any, processor: Processor) -> _Visual:
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
    return _Visual("image", pixels, (1, patches, 1), (features,), token, traits=traits)


def _cut_image(row: Row, image: Any, processor: Processor) -> _Visual:
    picture, traits = load_picture(row, image, "broken-image", "its image", processor.pictures)
    try:
        encoded = processor.image_processor(images=[picture], return_tensors="pt")
    except ValueError as error:  # an image processor refuses an extreme aspect ratio
        raise refuse("broken-image", f"{row.id}: {error}", row.origin) from error
    t, h, w = encoded["image_grid_thw"][0].tolist()
    # The vision tower merges merge_size² patches into one feature.
    features = t * h * w // processor.image_processor.merge_size**2
    token = processor.ids.image
    return _Visual("image", encoded["pixel_values"], (t, h, w), (features,), token, traits=traits)


def _video(row: Row, clip: Clip, processor: Processor) -> _Visual:
    video, family = processor.video, processor.video.family
    try:
        pixels, (t, h, w) = video.cut(clip.frames)
    except ValueError as error:  # an extreme aspect ratio
        raise refuse("broken-video", f"{row.id}: {error}", row.origin) from error
    features = h * w // video.frames.merge_size**2
    runs = (features,) * t if family.facts.separate_frames else (t * features,)
    token = processor.ids.image if family.facts.videos_are_images else processor.ids.video
    return _Visual(
        "video",
        pixels,
        (t, h, w),
        runs,
        token,
        clip.seconds_per_grid(video.frames_per_patch),
        clip.traits,
    )


def _expand(
    ids: Sequence[int],
    labels: Sequence[int],
    row: Row,
    visuals: Iterator[_Visual],
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
    taken: list[_Visual] = []
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


def _joined(visuals: Sequence[_Visual], processor: Processor) -> Visuals:
    family = processor.video.family
    images: list[_Visual] = []
    videos: list[_Visual] = []
    for visual in visuals:
        (images if visual.kind == "image" or family.facts.videos_are_images else videos).append(
            visual
        )
    given: dict[str, Tensor] = {}
    if images:
        # Of a video taken as images each patch along time is one; an image has one such patch.
        grids = [(1, h, w) for t, h, w in (visual.grid for visual in images) for _ in range(t)]
        given |= {
            "pixel_values": torch.cat([visual.pixels for visual in images]),
            "image_grid_thw": torch.tensor(grids),
        }
    if videos:
        grids = [visual.grid for visual in videos]
        given |= {
            "pixel_values_videos": torch.cat([visual.pixels for visual in videos]),
            "video_grid_thw": torch.tensor(grids),
        }
        if family.facts.seconds_per_grid:
            given["second_per_grid_ts"] = torch.tensor([visual.seconds for visual in videos])
    return Visuals(**given)


def _truncate(
    row: Row, ids: list[int], labels: list[int], limit: int, settings: Data, processor: Processor
) -> tuple[list[int], list[int]]:
    length = f"{row.id} has {len(ids)} tokens; data.max_length is {limit}"
    if settings.on_overlong != "truncate":
        raise refuse("overlong-row", length, row.origin, parameter="data.max_length")
    for token, kind in ((processor.ids.image, "image"), (processor.ids.video, "video")):
        if token in ids[limit:]:
            raise refuse(
                "answer-cut-off",
                f"{length}, which cuts off {kind} tokens",
                row.origin,
                parameter="data.max_length",
            )
    if all(label == IGNORED for label in labels[:limit]):
        raise refuse(
            "answer-cut-off",
            f"{length}, which leaves nothing of its answers",
            row.origin,
            parameter="data.max_length",
        )
    return ids[:limit], labels[:limit]


__all__ = ["Chat", "Prompt", "Sample", "Visuals", "encode_prompt", "encode_question", "encode_row"]
