"""Pictures become RGB with nothing lost in silence: against values that are computed here."""

import base64
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.image_utils import load_image

from tests.rows import decompression_bomb
from vtool.models.pictures import LARGEST_PICTURE_FILE, PictureReader, TooManyPixels, WideValues

RAMP = np.linspace(0, 4095, 64 * 32).reshape(32, 64)
WIDE: dict[str, tuple[Any, str]] = {
    "16 bits PNG": (RAMP.astype(np.uint16), "a.png"),
    "16 bits TIFF": (RAMP.astype(np.uint16), "a.tif"),
    "16 bits big-endian": (RAMP.astype(">u2"), "a.tif"),
    "16 bits JPEG 2000": (RAMP.astype(np.uint16), "a.jp2"),
    "16 bits PGM": (RAMP.astype(np.uint16), "a.pgm"),
    "32 bits TIFF": (RAMP.astype(np.int32), "a.tif"),
    "floating point TIFF": (RAMP.astype(np.float32), "a.tif"),
}


def saved(folder: Path, name: str) -> Path:
    pixels, file = WIDE[name]
    Image.fromarray(pixels).save(folder / file)
    return folder / file


def grey(value: Any) -> Any:
    """Return 0 to 4095 in 8 bits, in exact whole numbers."""
    return (510 * value.astype(np.int64) + 4095) // (2 * 4095)


@pytest.mark.parametrize("name", WIDE)
def test_values_that_rgb_does_not_hold_are_refused(tmp_path: Path, name: str) -> None:
    file = saved(tmp_path, name)
    with pytest.raises(WideValues, match="more than 8 bits"):
        PictureReader().read(str(file))
    # what happens without: the greys between are lost
    assert len(np.unique(np.asarray(load_image(str(file))))) < 257


@pytest.mark.parametrize("name", sorted(set(WIDE) - {"floating point TIFF", "16 bits PGM"}))
def test_a_declared_range_becomes_black_to_white(tmp_path: Path, name: str) -> None:
    picture, traits = PictureReader(range=(0, 4095)).read(str(saved(tmp_path, name)))
    assert picture.mode == "RGB"
    assert traits == ()
    for channel in np.moveaxis(np.asarray(picture), -1, 0):
        np.testing.assert_array_equal(channel, grey(WIDE[name][0]))


def test_floating_point_is_scaled_without_being_cut_to_whole_numbers(tmp_path: Path) -> None:
    Image.fromarray((RAMP / 4095).astype(np.float32)).save(tmp_path / "a.tif")
    picture, traits = PictureReader(range=(0, 1)).read(str(tmp_path / "a.tif"))
    assert traits == ()
    wanted = np.rint(RAMP / 4095 * 255)
    assert np.abs(np.asarray(picture)[..., 0] - wanted).max() <= 1  # float32, at a half
    assert len(np.unique(np.asarray(picture))) == 256


def test_values_outside_of_the_range_and_a_range_that_does_not_fit_are_reported(
    tmp_path: Path,
) -> None:
    file = str(saved(tmp_path, "16 bits PNG"))
    picture, traits = PictureReader(range=(1000, 2000)).read(file)
    assert traits == ("clipped",)
    assert {0, 255} <= set(np.unique(np.asarray(picture)))
    assert PictureReader(range=(0, 10_000_000)).read(file)[1] == ("flat",)


def test_unsigned_32_bits_are_not_taken_for_negative(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, -1]], np.int32)).save(tmp_path / "a.tif")
    whole = (tmp_path / "a.tif").read_bytes()
    signed = (339).to_bytes(2, "little") + b"\x03\x00\x01\x00\x00\x00\x02\x00"
    assert signed in whole
    (tmp_path / "b.tif").write_bytes(whole.replace(signed, signed[:-2] + b"\x01\x00"))
    picture, _ = PictureReader(range=(0, 2**32 - 1)).read(str(tmp_path / "b.tif"))
    assert np.asarray(picture)[0, :, 0].tolist() == [0, 255]


def test_a_picture_with_nan_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0.5, np.nan]], np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match="NaN"):
        PictureReader(range=(0, 1)).read(str(tmp_path / "a.tif"))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
@pytest.mark.parametrize("orientation", [None, 1, 6])
def test_all_others_are_what_transformers_makes_of_them(
    tmp_path: Path, mode: str, orientation: int | None
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    file = str(tmp_path / "a.tif")
    Image.fromarray(noise).convert("RGBA" if mode == "LA" else "RGB").convert(mode).save(
        file, exif=exif
    )
    try:
        Image.open(file).load()
    except OSError as error:
        pytest.skip(f"not run: this Pillow cannot read what it has written: {error}")
    picture, traits = PictureReader().read(file)
    np.testing.assert_array_equal(np.asarray(picture), np.asarray(load_image(file)))
    lost = {"RGBA": {"alpha"}, "LA": {"alpha"}, "CMYK": {"CMYK"}}.get(mode, set())
    assert set(traits) == lost | ({"turned"} if orientation == 6 else set())


def test_several_frames_and_transparent_colors_are_seen_in_the_header(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (8, 8), color) for color in ("red", "blue"))
    for name in ("a.gif", "a.webp", "a.tif", "a.png"):
        first.save(tmp_path / name, save_all=True, append_images=[second])
        assert PictureReader().read(str(tmp_path / name))[1] == ("frames",)
    first.convert("P").save(tmp_path / "b.png", transparency=0)
    assert PictureReader().read(str(tmp_path / "b.png"))[1] == ("alpha",)


def test_a_picture_within_a_row_is_read_like_a_file(tmp_path: Path) -> None:
    file = saved(tmp_path, "16 bits PNG")
    code = base64.b64encode(file.read_bytes()).decode()
    picture, _ = PictureReader(range=(0, 4095)).read(f"data:image/png;base64,{code}")
    np.testing.assert_array_equal(np.asarray(picture)[..., 0], grey(WIDE["16 bits PNG"][0]))
    with pytest.raises(WideValues):
        PictureReader().read(f"data:image/png;base64,{code}")
    with pytest.raises(ValueError, match="begins with data:image"):
        PictureReader().read(f"data:text/plain;base64,{code}")


def test_a_picture_in_memory_is_looked_at_as_well() -> None:
    with pytest.raises(WideValues):
        PictureReader().read(Image.fromarray(WIDE["16 bits PNG"][0]))


def test_too_many_pixels_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    with pytest.raises(TooManyPixels, match="3600000000"):
        PictureReader().read(str(decompression_bomb(tmp_path / "bomb.png")))
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    assert PictureReader(most_pixels=200).read(str(tmp_path / "a.png"))[0].size == (20, 10)
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(
        whole[: whole.index(b"IDAT") + 6]
    )  # no pixel is there to decode
    with pytest.raises(TooManyPixels, match="20 × 10 = 200"):
        PictureReader(most_pixels=199).read(str(tmp_path / "cut.png"))


@pytest.mark.full
def test_a_file_much_larger_than_any_picture_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(file)
    with file.open("r+b") as grown:
        grown.truncate(LARGEST_PICTURE_FILE + 1)  # without a block of the disk
    for look in (PictureReader().read, PictureReader().measure):
        with pytest.raises(ValueError, match=f"its file has {LARGEST_PICTURE_FILE + 1:,} bytes"):
            look(str(file))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "JPEG"])
def test_a_small_picture_with_a_long_tail_is_refused_before_it_is_read(
    tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "picture"
    Image.new("RGB", (8, 8)).save(file, kind)
    PictureReader().read(str(file))
    with file.open("r+b") as grown:
        grown.truncate(2**30)  # without a block of the disk
    for look in (PictureReader().read, PictureReader().measure):
        with pytest.raises(ValueError, match="its file has 1,073,741,824 bytes"):
            look(str(file))


def test_a_large_photo_gives_no_warning_of_a_bomb(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.new("1", (10_000, 9_000)).save(file)  # above the half of what Pillow refuses
    code = (
        "from vtool.models.pictures import PictureReader as R\n"
        f"print(R().read({str(file)!r})[0].size)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::PIL.Image.DecompressionBombWarning", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "(10000, 9000)"


def test_postscript_is_not_run(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    with pytest.raises(ValueError, match="PostScript"):
        PictureReader().read(str(tmp_path / "a.eps"))


@pytest.mark.parametrize("how", ["read", "measure"])
@pytest.mark.parametrize("carried", [False, True])
def test_a_png_with_another_checksum_is_refused_though_its_pixels_decode(
    tmp_path: Path, how: str, carried: bool
) -> None:
    """Pillow decodes pixels without a look at the checksums of their chunks."""
    file = tmp_path / "a.png"
    Image.effect_noise((40, 30), 50).convert("RGB").save(file)
    content = bytearray(file.read_bytes())
    given: str | bytes = bytes(content) if carried else str(file)
    assert getattr(PictureReader(), how)(given)
    end = content.rindex(b"IEND") - 8  # the last byte of the pixels' checksum is before it
    content[end + 3] ^= 1
    file.write_bytes(content)
    with Image.open(file) as image:
        image.load()  # as everybody else sees it
    given = bytes(content) if carried else str(file)
    with pytest.raises(ValueError, match="checksum in b'IDAT'"):
        getattr(PictureReader(), how)(given)


@pytest.mark.parametrize("progressive", [True, False])
def test_a_jpeg_of_very_many_scans_is_refused_before_it_is_decoded(progressive: bool) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((64, 48), 90).convert("RGB").save(
        buffer, "JPEG", progressive=progressive, quality=90
    )
    whole = buffer.getvalue()
    reader = PictureReader(10**6)
    assert reader.measure(whole)[0] == reader.read(whole)[0].size == (64, 48)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    many = whole[:-2] + last * 200 + b"\xff\xd9"
    for read in (reader.measure, reader.read):
        with pytest.raises(ValueError, match=r"it has 2\d\d scans, and 100 at most are decoded"):
            read(many)


def test_what_lies_behind_a_jpeg_or_in_its_notes_is_no_scan() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48)).save(buffer, "JPEG")
    whole, note = buffer.getvalue(), b"\xff\xfe\x10\x02" + b"\xff\xda" * 2048
    made = whole[:2] + note + whole[2:] + b"\xff\xda" * 2048  # as a film behind a photo has them
    assert PictureReader(10**6).read(made)[0].size == (64, 48)
