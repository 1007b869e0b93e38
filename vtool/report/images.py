"""Test images, small enough to be inside the page."""

import base64
import io
import os
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

_LARGEST_SIDE = 256
_LARGEST_FILE = 12_000
_PIXELATED_UP_TO = 96
_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}


@dataclass(frozen=True, slots=True)
class Picture:
    """An image as a `data:` address."""

    address: str
    width: int
    height: int
    pixelated: bool
    """So small that its pixels are to be seen, not blurred away when it is enlarged."""


class Pictures:
    """Embeds images until the page's share for them is used up.

    The caller counts those that no longer fit.
    """

    def __init__(self, budget: int) -> None:
        self.left = budget

    def embed(self, folder: Path, name: str) -> Picture | None:
        """Return the image `name` of a run's folder.

        None where it is absent, unreadable, outside of the folder, or no longer fits.
        """
        try:
            path, own = (Path(os.path.realpath(one)) for one in (folder / name, folder))
            # The page is passed around: a name that leads out of the run's folder must not put
            # another file into it.
            if not path.is_relative_to(own) or not path.is_file():
                return None
            picture = _picture(path)
        # Pillow raises them all for damaged files
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
            return None
        if len(picture.address) > self.left:
            return None
        self.left -= len(picture.address)
        return picture


def _picture(path: Path) -> Picture:
    with Image.open(path) as image:
        image.load()
        kind, size = image.format or "", image.size
        large = path.stat().st_size > _LARGEST_FILE
        content = b"" if large else path.read_bytes()
        if kind not in _TYPES or large or max(size) > 4 * _LARGEST_SIDE:
            small = image.convert("RGB")
            small.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
            buffer = io.BytesIO()
            small.save(buffer, format="JPEG", quality=80)
            kind, content = "JPEG", buffer.getvalue()
    address = f"data:{_TYPES[kind]};base64,{base64.b64encode(content).decode('ascii')}"
    return Picture(address, *size, pixelated=max(size) <= _PIXELATED_UP_TO)
