"""Pictures are measured without being decoded whole: as `read` would have found them."""

import io
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from tests.each_family import EACH_FAMILY
from vtool.families.family import load_family
from vtool.models.pictures import PictureReader

READER = PictureReader()


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture of soft shapes with some noise, as a camera's."""
    random_state = np.random.RandomState(seed)
    small = Image.fromarray(random_state.randint(0, 256, (6, 8, 3), dtype=np.uint8))
    soft = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noise = random_state.randint(-9, 10, (height, width, 3))
    return Image.fromarray((soft + noise).clip(0, 255).astype(np.uint8))


def outcome(measure: Callable[..., Any], *given: Any) -> Any:
    try:
        return measure(*given)
    except Exception as error:
        return type(error), str(error)


def read(file: str) -> tuple[tuple[int, int], tuple[str, ...]]:
    picture, traits = READER.read(file)
    return picture.size, traits


def oriented(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
MADE: dict[str, Callable[[Path], None]] = {
    **{
        f"JPEG turned {value}": lambda file, value=value: photo(60, 40).save(
            file, "JPEG", exif=oriented(value)
        )
        for value in range(1, 9)
    },
    **{
        f"PNG turned {value}": lambda file, value=value: photo(60, 40).save(
            file, "PNG", exif=oriented(value)
        )
        for value in (1, 6)
    },
    "JPEG turned by XMP": lambda file: photo(60, 40).save(file, "JPEG", xmp=XMP),
    "JPEG progressive": lambda file: photo(300, 200).save(file, "JPEG", progressive=True),
    "JPEG of 3 × 2 pixels": lambda file: photo(3, 2).save(file, "JPEG"),
    "JPEG grey": lambda file: photo(90, 70).convert("L").save(file, "JPEG"),
    "JPEG CMYK": lambda file: photo(90, 70).convert("CMYK").save(file, "JPEG"),
    "PNG with alpha": lambda file: photo(90, 70).convert("RGBA").save(file, "PNG"),
    "PNG of a palette": lambda file: photo(90, 70).convert("P").save(file, "PNG", transparency=0),
    "PNG of 1 bit": lambda file: photo(90, 70).convert("1").save(file, "PNG"),
    "PNG of 16 bits": lambda file: Image.fromarray(
        np.arange(600, dtype=np.uint16).reshape(20, 30)
    ).save(file, "PNG"),
    "PNG of several frames": lambda file: photo(90, 70).save(
        file, "PNG", save_all=True, append_images=[photo(90, 70, 1)]
    ),
    "GIF of several frames": lambda file: photo(90, 70).save(
        file, "GIF", save_all=True, append_images=[photo(90, 70, 1)]
    ),
    "WebP": lambda file: photo(90, 70).save(file, "WEBP"),
    "TIFF turned": lambda file: photo(60, 40).save(file, "TIFF", tiffinfo={0x0112: 6}),
    "BMP": lambda file: photo(90, 70).save(file, "BMP"),
    "no picture": lambda file: file.write_text("not an image") and None,
    "empty": lambda file: file.write_bytes(b"") and None,
    "absent": lambda file: None,
}


@pytest.mark.parametrize("name", MADE)
def test_size_and_traits_are_those_of_the_picture_that_is_read(tmp_path: Path, name: str) -> None:
    MADE[name](tmp_path / "a")
    assert outcome(READER.measure, str(tmp_path / "a")) == outcome(read, str(tmp_path / "a"))


def test_a_png_whose_turn_stands_behind_its_pixels_is_turned(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    photo(60, 40).save(file)
    data, chunk = file.read_bytes(), io.BytesIO()
    PngImagePlugin.putchunk(chunk, b"eXIf", oriented(6).tobytes()[6:])
    end = data.index(b"IEND") - 4
    file.write_bytes(data[:end] + chunk.getvalue() + data[end:])
    assert READER.measure(str(file)) == read(str(file)) == ((40, 60), ("turned",))


@pytest.mark.parametrize("kind", ["JPEG", "progressive JPEG", "PNG"])
def test_damage_that_decoding_finds_is_found_and_nothing_else(tmp_path: Path, kind: str) -> None:
    """Files cut anywhere, cut a little, with a flipped bit, with zeros, with more behind them."""
    chance, file = random.Random(0), tmp_path / "a"
    buffer = io.BytesIO()
    photo(160, 120).save(buffer, kind.rsplit(maxsplit=1)[-1], progressive=kind.startswith("prog"))
    whole = buffer.getvalue()
    found = 0
    for number in range(150):
        data = bytearray(whole)
        at = chance.randrange(len(data))
        match number % 5:
            case 0:
                del data[at:]
            case 1:
                del data[-chance.randint(1, 64) :]
            case 2:
                data[at] ^= 1 << chance.randrange(8)
            case 3:
                data[at : at + 64] = bytes(len(data[at : at + 64]))
            case 4:
                data += chance.randbytes(40)
        file.write_bytes(data)
        measured, decoded = outcome(READER.measure, str(file)), outcome(read, str(file))
        # of a PNG whose checksums are right, no more is asked
        assert measured == decoded, (number, measured, decoded)
        found += isinstance(decoded[0], type)
    assert found >= 30


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_patches_are_counted_as_the_image_processor_cuts_them(family: str) -> None:
    known = load_family(family)
    cutter = known.image_processor_class("pil")(**asdict(known.facts.patches))
    cutter.size = {"shortest_edge": 56 * 56, "longest_edge": 200 * 200}
    chance = random.Random(0)
    sizes = [(1, 1), (1, 200), (28, 28), (27, 29), (14, 42), (800, 9)]
    sizes += [(chance.randint(1, 400), chance.randint(2, 400)) for _ in range(60)]
    for width, height in sizes:
        picture = photo(width, height)
        cut = outcome(lambda shown: int(cutter(images=[shown])["image_grid_thw"].prod()), picture)
        counted = outcome(cutter.get_number_of_image_patches, height, width, {})
        assert counted == cut, (width, height)
