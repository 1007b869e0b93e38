"""Small pictures that a folder keeps: written whole or not at all."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import PIL.Image

from vtool.contents import open_regular


def keep_picture(path: Path, side: int, make: Callable[[], Any]) -> bool:
    """Write a picture as PNG, unless the folder has it whole already.

    A name is given last, so that no process that is killed, and no full disk, leaves half of one.

    Args:
        path: ends in .png.
        side: the longest side in pixels.
        make: returns the picture of PIL, or None where there is none.

    Returns:
        Whether it is there.

    Raises:
        OSError: it cannot be written.
    """
    if _is_whole(path):
        return True
    if (picture := make()) is None:
        return False
    small = picture.copy()
    small.thumbnail((side, side))
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_name(f".writing-{path.name}")
    try:
        small.save(unfinished, format="PNG")
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise
    return True


def _is_whole(path: Path) -> bool:
    try:
        with open_regular(path) as file, PIL.Image.open(file) as kept:
            kept.load()
    except (OSError, ValueError, SyntaxError):  # SyntaxError: a chunk whose CRC is wrong
        return False
    return True
