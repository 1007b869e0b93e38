"""Rows for tests: chats with one image, several, or none, in one turn or more."""

import json
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(path: Path, width: int = 56, height: int = 28, seed: int = 0) -> Path:
    """A picture of noise."""
    pixels = np.random.RandomState(seed).randint(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def decompression_bomb(path: Path) -> Path:
    """A small PNG that says it has 60,000 × 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )
    return path


def chat(question: Any, answer: str) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    }


def frames(
    folder: Path, name: str, count: int, width: int = 56, height: int = 28, seed: int = 0
) -> list[str]:
    """The names of so many smooth pictures, each another one.

    (At edges of noise, two libraries' resizing differs by many levels.)
    """
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    names = [f"{name}-{place}.png" for place in range(count)]
    for place, file in enumerate(names):
        levels = [
            128 + 100 * np.sin(across / 9 + color + seed + place) * np.cos(down / 7 + place)
            for color in range(3)
        ]
        Image.fromarray(np.stack(levels, -1).astype(np.uint8)).save(folder / file)
    return names


def film(
    path: Path, count: int, width: int = 64, height: int = 48, fps: int = 10, codec: str = "mpeg4"
) -> Path:
    """A video file whose frame number n is of one grey, about 8 + 8 · n."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(count):
            grey = np.full((height, width, 3), 8 + 8 * (number % 30), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    return path


def visual_rows(folder: Path) -> list[dict[str, Any]]:
    """An image, two images, a video, an image before a video, two videos, and text alone."""
    one, two, three = (
        picture(folder / f"still-{seed}.png", 28 * seed, 56, seed).name for seed in (1, 2, 3)
    )
    short, long = frames(folder, "short", 2, seed=1), frames(folder, "long", 5, 60, 44, seed=2)
    return [
        chat("<image>Which?", "yes") | {"images": [one]},
        chat("<image>Like <image>?", "no no") | {"images": [two, three]},
        chat("<video>What happens?", "it moves") | {"videos": [{"video": long, "fps": 4}]},
        chat(
            [
                {"type": "image", "image": two},
                {"type": "text", "text": "then"},
                {"type": "video", "video": short},
            ],
            "yes",
        ),
        chat("<video>or <video>?", "no") | {"videos": [short, long]},
        chat("What is 1 plus 1?", "2"),
    ]


def mixed_rows(folder: Path, count: int, text_only: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Rows of unequal lengths;

    those of `text_only` have no image, every fifth other one has two.
    """
    rows = []
    for number in range(count):
        answer = " ".join(["yes"] * (1 + number % 7))
        if number in text_only:
            rows.append(chat(f"What is {number} plus {number}?", answer))
            continue
        names = [
            picture(folder / f"{number}-{place}.png", 28 * (1 + number % 3), 28, number).name
            for place in range(2 if number % 5 == 4 else 1)
        ]
        rows.append(
            chat("<image>" * len(names) + f"Is this number {number}?", answer) | {"images": names}
        )
    return rows


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    """A JSON-lines file; entries that are text are written as they are."""
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return path
