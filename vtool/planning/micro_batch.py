"""A micro-batch of a recipe's largest sizes, without its rows."""

from dataclasses import dataclass
from math import isqrt, prod
from pathlib import Path
from typing import Any

import torch

from vtool.config.schema import Run
from vtool.data.collate import Batch, Documents
from vtool.families import family_facts
from vtool.families.family import Family
from vtool.model_folder import ModelFolder
from vtool.planning.measured import MeasuredRows
from vtool.words import plural


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a micro-batch."""

    rows: int
    tokens: int
    """The tokens of each row, with those of its images."""
    images: int
    """The images of each row."""
    side: int
    """Patches along a side of an image."""
    image_tokens: int
    """The tokens of one image."""
    packed: bool
    """True if its row is one document, whose attention needs no mask."""
    width: int | None = None
    """Patches along the other side; None: as many."""
    answer: int | None = None
    """The supervised tokens of a row; None: all but those of images."""

    @property
    def grid(self) -> tuple[int, int]:
        """The patches along both sides of an image."""
        return self.side, self.side if self.width is None else self.width

    @property
    def predicted(self) -> int:
        """The positions from which a token may be predicted, of all rows."""
        first = self.images * (self.image_tokens + 2)
        return self.rows * (self.tokens - 1 - max(first - 1, 0))

    @property
    def supervised(self) -> int:
        """The supervised tokens of all rows, at most."""
        return self.predicted if self.answer is None else self.rows * self.answer


def bound_of(run: Run) -> int | None:
    """Return the most tokens of a row, or of a packed row, by the recipe; None: any number."""
    packed = run.data.packing != "none"
    return run.data.micro_batch_tokens if packed else run.data.max_length


def shape_of(
    run: Run,
    world: int,
    tokens: int | None = None,
    images: int | None = None,
    measured: MeasuredRows | None = None,
) -> Shape:
    """Return the largest micro-batch that a recipe allows one of so many ranks.

    Its images are as large as they may be, and take up to three quarters of a row. All other tokens
    are supervised. It has no more rows than a rank gets of a step, and a packed row no more tokens
    than these have.

    Args:
        world: the ranks.
        tokens: of a row, where that is not `data.max_length` or `data.micro_batch_tokens`.
        images: of a row, where they are not to fill it.
        measured: the rows, where the recipe does not say how long they are.

    Raises:
        ValueError: where the recipe does not say how long a row is, or images do not fit into it.
    """
    data, packed = run.data, run.data.packing != "none"
    share = run.rows_of_rank(world)
    if tokens is None:
        tokens = data.max_length
        if packed:
            assert data.micro_batch_tokens is not None, "a rule demands it"
            most = data.micro_batch_tokens if tokens is None else share * tokens
            tokens = min(data.micro_batch_tokens, most)
    rows = 1 if packed or data.micro_batch_size == "auto" else min(data.micro_batch_size, share)
    if tokens is None and measured is not None:
        tokens = measured.tokens
        if images is None and measured.images is not None:
            return _measured_shape(run, rows, measured)
    if tokens is None:
        raise ValueError("the recipe does not bound its rows")
    sizes = family_facts(run.model.family).patches
    merged = sizes.merge_size
    pixels = data.image.max_pixels or _folder_pixels(run)
    most = (3 * tokens // 4 - 2) if images is None else tokens // max(1, images) - 3
    wanted = most if pixels is None else pixels // sizes.pixels_per_token
    across = isqrt(max(0, min(wanted, most)))
    each = across * across
    if images is None:
        images = (3 * tokens // 4) // (each + 2) if each else 0
    elif images and not each:
        raise ValueError(f"{images} images do not fit into a row of {tokens} tokens")
    return Shape(rows, tokens, images, across * merged, each, packed)


def _measured_shape(run: Run, rows: int, measured: MeasuredRows) -> Shape:
    """Return rows as long as the longest, each with the most images that one has."""
    merged, images = family_facts(run.model.family).patches.merge_size, measured.images or 0
    high, wide = measured.grid
    if images * (high * wide // merged**2 + 2) >= measured.tokens:  # not all are as large
        high = wide = merged * isqrt(max(0, measured.tokens // images - 3))
    each = high * wide // merged**2
    return Shape(
        rows,
        measured.tokens,
        images,
        high,
        each,
        packed=False,
        width=wide,
        answer=measured.supervised,
    )


def passes_of(run: Run, world: int, shape: Shape) -> int:
    """Return the micro-batches of a rank in a step; of packed rows, the most that there can be.

    `data.packing.pack` gives the longest row that is left to the rank with the fewest tokens, so
    none gets more than its share of rows of the greatest length. It opens a row only for what fits
    into no other: any two of a rank have more tokens than the budget, and n of them more than half
    of n budgets.
    """
    share = run.rows_of_rank(world)
    if not shape.packed:
        return -(-share // shape.rows)
    tokens = share * min(run.data.max_length or shape.tokens, shape.tokens)
    return min(share, max(1, -(-2 * tokens // shape.tokens) - 1))


def _folder_pixels(run: Run) -> int | None:
    """Return the largest image of a model's folder, in pixels."""
    if run.model.path is None:
        return None
    found = ModelFolder(Path(run.model.path)).image_processor or {}
    size = found.get("size") or {}
    pixels = found.get("max_pixels") or size.get("max_pixels") or size.get("longest_edge")
    return pixels if isinstance(pixels, int) else None


def build_batch(module: Any, family: Family, shape: Shape) -> Batch:
    """Return a micro-batch of these sizes."""
    config, vision = module.config, module.model.visual.config
    tokens = {name: getattr(config, field) for name, field in family.facts.token_fields.items()}
    plain = next(one for one in range(99) if one not in tokens.values())
    row = torch.full((shape.tokens,), plain)
    for image in range(shape.images):
        at = image * (shape.image_tokens + 2)
        end = at + shape.image_tokens + 1
        row[at], row[end] = tokens.get("vision_start", plain), tokens.get("vision_end", plain)
        row[at + 1 : end] = tokens["image"]
    ids = row.repeat(shape.rows, 1)
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == tokens["image"]).long()}
    if not shape.packed:
        inputs["attention_mask"] = torch.ones_like(ids)
    if count := shape.rows * shape.images:
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        inputs["pixel_values"] = torch.zeros(count * prod(shape.grid), width)
        inputs["image_grid_thw"] = torch.tensor([[1, *shape.grid]] * count)
    first = shape.images * (shape.image_tokens + 2)
    columns = torch.arange(max(first - 1, 0), shape.tokens - 1)
    return Batch(
        inputs=inputs,
        columns=columns,
        targets=ids[:, columns + 1],
        indices=tuple(range(shape.rows)),
        supervised=shape.supervised,
        tokens=shape.rows * shape.tokens,
        visual=shape.rows * shape.images * shape.image_tokens,
        padding=0,
        documents=Documents((shape.tokens,), (shape.images,), (0,)) if shape.packed else None,
    )


def shape_in_words(shape: Shape) -> str:
    """Return the rows, images and tokens of a micro-batch as words for a line."""
    row = "a packed row" if shape.packed else plural(shape.rows, "row")
    of = f" of {plural(shape.image_tokens, 'token')} in each"
    images = plural(shape.images, "image") + of if shape.images else "no image"
    tokens = plural(shape.tokens, "token")
    return f"{row} of {tokens}, {images}, {shape.supervised:,} supervised"
