"""Reading of pictures: upright, in RGB, and never with values that RGB cannot hold."""

import base64
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps

from vtool.config.schema.data import MOST_DECODED_PIXELS, Image

# Pillow's advice to whoever converts such a picture; its transparency is a trait here.
warnings.filterwarnings("ignore", "Palette images with Transparency", UserWarning)
_ORIENTATION = 0x0112  # of EXIF: 1 is upright
_ON_ITS_SIDE = range(5, 9)
# What a PNG has where Pillow finds an orientation, which may be behind the pixels.
_TURNS_A_PNG = (b"eXIf", b"com.adobe.xmp", b"Raw profile type")
_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
_MOST_SCANS = 100
"""Scans of a JPEG that are decoded: encoders write a dozen."""
LARGEST_PICTURE_FILE = 2**31
"""Bytes of a picture's file: the most pixels that are decoded, of 12 bytes each."""
_LARGEST_WHOLE = 2**29
"""Bytes of a file of WebP or AVIF: Pillow reads the whole of it to open it."""
_USUAL_FILE = 2**27
"""Bytes up to which a file may be larger than its picture: it may have many frames."""
_WHITE_IS_ZERO, _PHOTOMETRIC = 0, 262  # of TIFF
_SAMPLE_FORMAT, _UNSIGNED = 339, 1
PICTURE_TRAITS = {
    "alpha": "with transparency, which is left out (vLLM puts white behind it)",
    "frames": "of several frames, of which the first is taken",
    "CMYK": "in CMYK, turned into RGB without a color profile",
    "16-bit": "with 16 bits a color, of which the upper 8 are taken",
    "turned": "turned upright, as their EXIF tag says",
    "clipped": ("with values outside of data.image.sixteen_bit_range, which became black or white"),
    "flat": "of which all values became one grey in data.image.sixteen_bit_range",
}
"""The losses and changes of a picture that becomes RGB, by the names of traits."""


class WideValues(ValueError):
    """A picture has values that 8 bits do not hold, and nothing says their range."""


class TooManyPixels(ValueError):
    """A picture is not decoded, since it has more pixels than may be."""


@dataclass(frozen=True, slots=True)
class PictureReader:
    """The reader that makes of a file the RGB picture that a model is shown."""

    most_pixels: int = MOST_DECODED_PIXELS
    """Pixels of a picture that is decoded."""
    range: tuple[float, float] | None = None
    """The values that become black and white in a picture of more than 8 bits of grey; None: such a
    picture is refused."""

    @classmethod
    def of(cls, image: Image) -> "PictureReader":
        """Return the reader that these settings ask for."""
        scaled = image.sixteen_bit == "scale"
        return cls(image.max_decoded_pixels, image.sixteen_bit_range if scaled else None)

    def read(self, given: Any) -> tuple[Any, tuple[str, ...]]:
        """Return a picture as transformers' `load_image` has it, and its traits.

        These are names of `PICTURE_TRAITS`.

        Args:
            given: a path, a `data:` address, a file's bytes, or a picture of PIL.

        Raises:
            WideValues, TooManyPixels, and whatever a decoder raises for its file format.
        """
        _check_size(given)
        with _opened(given) as opened:
            image = opened
            if (pixels := image.width * image.height) > self.most_pixels:
                raise TooManyPixels(
                    f"it has {image.width:,} × {image.height:,} = {pixels:,} pixels"
                )
            if image.format == "PNG":
                _check_chunks(given)
            if image.format in ("JPEG", "MPO"):
                _check_scans(given)
            if image.format == "EPS":
                raise ValueError("it is PostScript, a program, which is not run")
            if is_wide(image) and self.range is None:
                raise WideValues(f"greyscale of more than 8 bits (PIL's mode {image.mode})")
            tags = dict(getattr(image, "tag_v2", {}))  # of TIFF; decoding changes them
            traits = list(_traits(image, tags))
            if "turned" in traits:
                image = PIL.ImageOps.exif_transpose(image)
            if is_wide(image):
                image, lost = self._narrowed(image, tags)
                traits += lost
            return image.convert("RGB"), tuple(traits)

    def measure(self, given: Any) -> tuple[tuple[int, int], tuple[str, ...]]:
        """Return the width and height that `read` gives a picture, and its traits, much sooner.

        A JPEG is decoded at an eighth of its size, and of a PNG the checksums are read. Every other
        format, and every doubt, is left to `read`.

        Raises:
            What `read` raises.
        """
        return _measured(given, self.most_pixels) or _size_and_traits(self.read(given))

    def size(self, given: Any) -> tuple[int, int]:
        """Return the width and height that a picture's header says, before it is turned upright.

        Raises:
            What a decoder raises for its file format.
        """
        with _opened(given) as image:
            width, height = image.size
            return int(width), int(height)

    def upright_size(self, given: Any) -> tuple[int, int]:
        """Return the width and height that `read` gives a picture, by its header alone.

        Raises:
            What a decoder raises for its file format.
        """
        with _opened(given) as image:
            width, height = image.size
            # of a PNG, Pillow would read the pixels to look behind them for the tag
            known = image.format != "PNG" or "exif" in image.info
            turned = known and image.getexif().get(_ORIENTATION) in _ON_ITS_SIDE
            return (int(height), int(width)) if turned else (int(width), int(height))

    def small(self, given: Any, side: int) -> tuple[tuple[int, int], Any]:
        """Return a picture's upright size, and a copy of it in a square of `side` pixels.

        A JPEG of any size is decoded at a part of it.

        Raises:
            What `read` raises.
        """
        with _opened(given) as image:
            if getattr(image, "format", None) == "JPEG":
                size = image.size
                image.draft("RGB", (2 * side, 2 * side))
                if image.getexif().get(_ORIENTATION) in _ON_ITS_SIDE:
                    size = size[::-1]
                small = PIL.ImageOps.exif_transpose(image).convert("RGB")
            else:
                small = self.read(given)[0].copy()
                size = small.size
        small.thumbnail((side, side))
        return size, small

    def _narrowed(self, image: Any, tags: Mapping[int, Any]) -> tuple[Any, list[str]]:
        """Return a picture of wide values with 8 bits of grey, and what was lost by it.

        Black and white are the range's ends, and what is between is linear.
        """
        assert self.range is not None
        if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
            raise ValueError("its tag says that 0 is white, which is not read in 16 bits and more")
        pixels = np.asarray(image)
        if pixels.dtype == np.int32 and tags and tags.get(_SAMPLE_FORMAT, (1,))[0] == _UNSIGNED:
            pixels = pixels.view(np.uint32)
        values = pixels.astype(np.float64)
        if np.isnan(values).any():
            raise ValueError("it has NaN among its values")
        low, high = self.range
        lost = ["clipped"] if values.min() < low or values.max() > high else []
        grey = np.rint((values.clip(low, high) - low) / (high - low) * 255).astype(np.uint8)
        if grey.min() == grey.max() and values.min() < values.max():
            lost.append("flat")
        return PIL.Image.fromarray(grey), lost


def _size_and_traits(
    read: tuple[Any, tuple[str, ...]],
) -> tuple[tuple[int, int], tuple[str, ...]]:
    image, traits = read
    return image.size, traits


def _measured(given: Any, most_pixels: int) -> tuple[tuple[int, int], tuple[str, ...]] | None:
    """Return the size and traits of a picture that is surely whole; None where that is not sure."""
    if not isinstance(given, str | bytes):
        return None
    try:
        data = _content(given)
        with _opened(data) as image:
            width, height = image.size
            if width * height > most_pixels or is_wide(image):
                return None
            if image.format == "JPEG":
                _check_scans(data)
                image.draft(image.mode, (max(1, width // 8), max(1, height // 8)))
                traits = tuple(_traits(image, {}))
                turned = image.getexif().get(_ORIENTATION) in _ON_ITS_SIDE
            elif image.format == "PNG" and not any(one in data for one in _TURNS_A_PNG):
                traits, turned = tuple(_header_traits(image)), False
                image.verify()
            else:
                return None
    except Exception:  # `read` says what is wrong, or that nothing is
        return None
    return (height, width) if turned else (width, height), traits


def _check_chunks(given: Any) -> None:
    """Refuse a PNG of which a chunk has another checksum: Pillow decodes pixels without them."""
    if not isinstance(given, str | bytes):
        return  # decoded already
    with _opened(given) as image:
        try:
            image.verify()
        except SyntaxError as error:
            raise ValueError(str(error)) from error


def _check_scans(given: Any) -> None:
    """Refuse a JPEG of very many scans: each of them, of a few bytes, is decoded for all pixels."""
    data = _content(given) if isinstance(given, str | bytes) else b""
    at = scans = 0
    if data.count(b"\xff\xda") <= _MOST_SCANS:  # the bytes may be part of something else
        return
    while (found := _JPEG_MARKER.search(data, at)) and found[0] != b"\xff\xd9":
        scans += found[0] == b"\xff\xda"
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
    if scans > _MOST_SCANS:
        raise ValueError(f"it has {scans:,} scans, and {_MOST_SCANS} at most are decoded")


def _content(given: str | bytes) -> bytes:
    """Return the bytes of a picture's file, which may be inside a row."""
    if isinstance(given, bytes):
        return given
    if given.startswith("data:"):
        return carried_picture(given).read()
    _check_size(given)
    return Path(given).read_bytes()


def _check_size(given: Any) -> None:
    """Refuse a file that is much larger than its picture: all of it is read for its digest."""
    if not isinstance(given, str) or given.startswith("data:"):
        return
    if (size := os.stat(given).st_size) <= _USUAL_FILE:
        return
    with open(given, "rb") as file:
        head = file.read(12)
    most = _LARGEST_WHOLE
    if head[8:] != b"WEBP" and head[4:8] != b"ftyp" and size <= LARGEST_PICTURE_FILE:
        with _opened(given) as image:
            most = min(LARGEST_PICTURE_FILE, max(_USUAL_FILE, 16 * image.width * image.height))
    if size > most:
        raise ValueError(f"its file has {size:,} bytes, and {most:,} at most are read")


def is_wide(image: Any) -> bool:
    """Return if a picture has a mode that `convert("RGB")` cuts at 0 and 255."""
    return str(image.mode).startswith(("F", "I"))


def _traits(image: Any, tags: Mapping[int, Any]) -> Iterator[str]:
    """Yield the traits that a picture's header shows, and its EXIF tag.

    That may stand behind a PNG's pixels, so that these are read first; those of a TIFF are turned
    by that.
    """
    yield from _header_traits(image)
    image.load()
    if (image.getexif().get(_ORIENTATION) or tags.get(_ORIENTATION, 1)) in range(2, 9):
        yield "turned"


def _header_traits(image: Any) -> Iterator[str]:
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        yield "alpha"
    if getattr(image, "is_animated", False):
        yield "frames"
    if image.mode == "CMYK":
        yield "CMYK"
    if not is_wide(image) and any(";16" in str(tile[3]) for tile in getattr(image, "tile", ())):
        yield "16-bit"


@contextmanager
def _opened(given: Any) -> Iterator[Any]:
    """Open a picture, of which only the header is read."""
    if not isinstance(given, str | bytes):
        yield given
        return
    source: Any = given
    if isinstance(given, bytes):
        source = BytesIO(given)
    elif given.startswith("data:"):
        source = carried_picture(given)
    try:
        with warnings.catch_warnings():
            # from half of what `most_pixels` may be; there, the setting decides
            warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)
            image = PIL.Image.open(source)
    except PIL.Image.DecompressionBombError as error:
        raise TooManyPixels(f"Pillow says: {error}") from error
    with image:
        yield image


def carried_picture(address: str) -> BytesIO:
    """Return the bytes that a `data:` address carries."""
    head, comma, code = address.partition(",")
    if not comma or not head.startswith("data:image/"):
        raise ValueError("a picture inside a row begins with data:image/…;base64,")
    return BytesIO(base64.decodebytes(code.encode()))
