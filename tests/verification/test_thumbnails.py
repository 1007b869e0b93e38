"""Thumbnails of rows' images: small, few, and never of a file that is not to be shown."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.data.drawn_boxes import rectangles, rows_file
from tests.rows import chat, decompression_bomb, picture, write_rows
from tests.runs import messages, request
from vtool.data.loader import EncodedRows
from vtool.data.sources import open_split
from vtool.models.processor import new_processor
from vtool.verification.thumbnails import BOXED_SIDE, MOST_THUMBNAILS, OF_A_ROW, SIDE, Thumbnails


def thumbnails(folder: Path, rows: list[Any], *overrides: str) -> Thumbnails:
    run = request("rows", messages(write_rows(folder / "rows.jsonl", rows)), *overrides).run
    processor = new_processor(run.model, run.data.image, ["a"], run.data.video)
    return Thumbnails(EncodedRows(open_split(run.data, "train"), processor, run.data))


def with_images(*names: str) -> dict[str, Any]:
    return chat("<image>" * len(names), "a") | {"images": list(names)}


@pytest.mark.parametrize("unit", ["absolute", "resized", "thousand", "hundred", "unit"])
def test_boxes_are_drawn_where_their_objects_are(tmp_path: Path, unit: str) -> None:
    """A green rectangle has a red line around it, on all four sides."""
    sizes = ((1500, 1000),)
    rows_file(tmp_path, unit, 1, sizes, resized=lambda *_: (1204, 812))
    text = (tmp_path / "rows.jsonl").read_text().splitlines()
    one = Thumbnails(thumbnails(tmp_path, text).rows, unit)
    (made,) = one.of(0)["thumbnails"]
    image = shown(made).convert("RGB")
    assert made["boxed"]
    assert image.size == (BOXED_SIDE, 213)
    (_, corners), *_ = rectangles(1, sizes)
    for left, top, right, bottom in corners:
        x = [value * BOXED_SIDE / 1500 for value in (left, (left + right) / 2, right)]
        y = [value * BOXED_SIDE / 1500 for value in (top, (top + bottom) / 2, bottom)]
        for across, down in ((x[0], y[1]), (x[2], y[1]), (x[1], y[0]), (x[1], y[2])):
            near = [
                image.getpixel(
                    (min(max(round(across) + i, 0), 319), min(max(round(down) + j, 0), 212))
                )
                for i in range(-3, 4)
                for j in range(-3, 4)
            ]
            assert any(red > 150 and green < 100 for red, green, _ in near)  # type: ignore[misc]


def shown(thumbnail: dict[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(thumbnail["address"].partition(",")[2])))


def test_a_jpeg_is_turned_upright_and_fits_a_square(tmp_path: Path) -> None:
    image = Image.new("RGB", (3000, 1000), "red")
    turned = image.getexif()
    turned[0x0112] = 6
    image.save(tmp_path / "a.jpg", exif=turned)
    (made,) = thumbnails(tmp_path, [with_images("a.jpg")]).of(0)["thumbnails"]
    assert made["text"] == "image 1 of 1: a.jpg, 1000 × 3000 pixels"
    width, height = shown(made).size
    assert (height, round(3 * width / height, 1)) == (SIDE, 1.0)
    red, green, blue = shown(made).getpixel((5, 5))  # type: ignore[misc]
    assert (red > 240, green < 15, blue < 15) == (True, True, True)


def test_rows_and_pages_have_a_number_of_images_and_count_the_rest(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    made = thumbnails(tmp_path, [with_images(*["a.png"] * 6)] * 20)
    found = [made.of(index) for index in range(20)]
    assert [len(one["thumbnails"]) for one in found[:2]] == [OF_A_ROW, OF_A_ROW]
    assert sum(len(one["thumbnails"]) for one in found) == MOST_THUMBNAILS
    assert [found[0]["more_images"], found[-1]["more_images"]] == [2, 6]
    assert len(json.dumps(found)) < 400_000


def test_what_cannot_be_decoded_says_why_and_a_bomb_is_not_decoded(tmp_path: Path) -> None:
    decompression_bomb(tmp_path / "bomb.png")
    (tmp_path / "text.png").write_text("no image")
    picture(tmp_path / "a.png")
    rows = [with_images("bomb.png", "text.png", "a.png"), chat("Hi", "a")]
    made = thumbnails(tmp_path, rows)
    bomb, text, whole = made.of(0)["thumbnails"]
    assert "pixels" in bomb["problem"]
    assert "cannot identify image file" in text["problem"]
    assert "problem" not in whole
    assert made.of(1) == {}


def test_a_file_outside_of_the_root_is_not_put_on_a_page(tmp_path: Path) -> None:
    picture(tmp_path / "secret.png")
    (tmp_path / "root").mkdir()
    secret = with_images("secret.png")
    assert thumbnails(tmp_path, [secret]).of(0)["thumbnails"]
    assert thumbnails(tmp_path, [secret], f"data.root={tmp_path}/root").of(0) == {}
