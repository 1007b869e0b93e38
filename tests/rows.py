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
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b""))
    return path


def chat(question: Any, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def mixed_rows(folder: Path, count: int, text_only: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Rows of unequal lengths; those of `text_only` have no image, every fifth other one has two."""
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
        rows.append(chat("<image>" * len(names) + f"Is this number {number}?", answer) | {"images": names})
    return rows


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    """A JSON-lines file; entries that are text are written as they are."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path
