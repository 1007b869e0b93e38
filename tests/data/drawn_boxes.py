"""Rows about rectangles that are drawn at known places, with their boxes in any unit."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from tests.rows import chat, write_rows

Corners = tuple[int, int, int, int]
SIZES = ((640, 480), (500, 400), (1280, 720))
LARGE = ((2000, 1600), (2400, 1600))


def rectangles(count: int, sizes: Sequence[tuple[int, int]], seed: int = 0) -> Iterator[Any]:
    """Yield the size of each picture and the corners of its two rectangles, in pixels."""
    random = np.random.default_rng(seed)
    for number in range(count):
        width, height = sizes[number % len(sizes)]
        corners = []
        for _ in range(2):
            left, top = random.uniform(0, 0.9, 2)
            right, bottom = random.uniform((left + 0.05, top + 0.05), 1)
            corners.append(
                (
                    round(left * width),
                    round(top * height),
                    round(right * width) - 1,
                    round(bottom * height) - 1,
                )
            )
        yield (width, height), corners


def draw(file: Path, size: tuple[int, int], corners: Sequence[Corners]) -> None:
    image = Image.new("P", size, 1)  # soon written
    image.putpalette([0, 128, 0, 255, 255, 255])
    for one in corners:
        ImageDraw.Draw(image).rectangle(one, fill=0)
    image.save(file)


def in_unit(
    corners: Corners, size: tuple[int, int], unit: str, resized: tuple[int, int] = (0, 0)
) -> list[float]:
    """Return a box, independently of vtool."""
    if unit == "absolute":
        return list(corners)
    across, down = {
        "thousand": (1000, 1000),
        "hundred": (100, 100),
        "unit": (1, 1),
        "resized": resized,
    }[unit]
    values = [
        value * whole / side
        for value, whole, side in zip(corners, (across, down) * 2, size * 2, strict=True)
    ]
    digits = {"unit": 3, "hundred": 1}.get(unit)
    return [round(value, digits) for value in values]


def as_json(boxes: Sequence[list[float]]) -> str:
    return json.dumps([{"bbox_2d": box, "label": "rectangle"} for box in boxes])


def rows_file(
    folder: Path,
    unit: str | Callable[[int], str],
    count: int = 24,
    sizes: Sequence[tuple[int, int]] = SIZES,
    *,
    write: Callable[[Sequence[list[float]]], str] = as_json,
    change: Callable[[int, list[float]], list[float]] = lambda _, box: box,
    resized: Callable[[int, int], tuple[int, int]] = lambda width, height: (width, height),
    question: str = "Find all rectangles.",
    name: str = "rows.jsonl",
) -> Path:
    """Write rows and their pictures: the boxes of row N in `unit(N)`, changed by `change`."""
    rows = []
    for number, (size, corners) in enumerate(rectangles(count, sizes)):
        draw(folder / f"{name}-{number}.png", size, corners)
        own = unit if isinstance(unit, str) else unit(number)
        boxes = [change(number, in_unit(one, size, own, resized(*size))) for one in corners]
        row = chat(f"<image>{question}", write(boxes)) | {"images": [f"{name}-{number}.png"]}
        rows.append(row)
    return write_rows(folder / name, rows)
