"""`data.coordinates`: boxes are rescaled where rows are read, exactly, or the row is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.data.drawn_boxes import SIZES, as_json, in_unit, rectangles, rows_file
from tests.rows import chat, picture, write_rows
from tests.runs import messages, request, session
from vtool.data.coordinates import rescale_rows
from vtool.data.row import Row
from vtool.data.sources import open_split
from vtool.diagnostics import Findings
from vtool.evaluation.subject import with_own_reading
from vtool.models.processor import new_processor
from vtool.verification.rows import audit_rows

SOON = "data.image.max_pixels=50176"


def change(source: str, to: str) -> str:
    return f"data.coordinates={{from: {source}, to: {to}}}"


def read(file: Path, *overrides: str) -> list[Row]:
    """Return the rows of a file as a run reads them."""
    run = request("rows", messages(file), *overrides).run
    rows = open_split(run.data, "train")
    processor = new_processor(run.model, run.data.image, ["a"], run.data.video)
    rescale_rows(rows, processor, run.data)
    return [rows.row(index) for index in range(len(rows))]


def answer(row: Row) -> Any:
    return row.messages[1]["content"]


def refused(file: Path, *overrides: str) -> str:
    with pytest.raises(Findings) as raised:
        read(file, *overrides)
    (one,) = raised.value.diagnostics
    assert (one.rule, one.parameter) == ("coordinates-not-rescaled", "data.coordinates")
    return one.message


def test_boxes_in_pixels_become_thousandths_of_each_picture(tmp_path: Path) -> None:
    made = request(
        "rows",
        messages(rows_file(tmp_path, "absolute", 12)),
        "model.family=qwen3_vl",
        change("absolute", "thousand"),
        SOON,
        f"run.dir={tmp_path / 'runs'}",
    )
    (audit,) = audit_rows(made.run)
    for shown, (size, corners) in zip(audit.shown, rectangles(12, SIZES), strict=False):
        (span,) = shown.spans
        wanted = as_json([in_unit(one, size, "thousand") for one in corners])
        assert span.text == f"{wanted}<|im_end|>"
    assert audit.findings == ()
    opened, _ = session(made)
    assert answer(opened.rows["train"].rows.row(0)) in audit.shown[0].spans[0].text
    assert json.loads((opened.folder.path / "data.json").read_text())["train"]["boxes"] == {
        "rows": 12,
        "boxes": 24,
        "written_as": ["keys such as bbox_2d"],
        "unit": "thousand",
        "expected": "thousand",
    }
    written = yaml.safe_load((opened.folder.path / "config.yaml").read_text())
    assert written["data"]["coordinates"] == {"from": "absolute", "to": "thousand"}


@pytest.mark.parametrize(
    ("source", "to", "before", "after"),
    [
        ("absolute", "thousand", "[64, 48, 320, 240]", "[100, 100, 500, 500]"),
        ("absolute", "unit", "[64, 48, 320, 479]", "[0.1, 0.1, 0.5, 0.9979]"),
        ("thousand", "absolute", "[100, 100, 500, 1000]", "[64, 48, 320, 480]"),
        ("thousand", "unit", "[100, 25, 500, 1000]", "[0.1, 0.025, 0.5, 1]"),
        ("unit", "thousand", "[0.1, 0.1, 0.5, 1.0]", "[100, 100, 500, 1000]"),
        ("absolute", "hundred", "[64, 48, 320, 461]", "[10, 10, 50, 96]"),
        # 640 × 480 is shown as 644 × 476: 28 · 23 and 28 · 17
        ("absolute", "resized", "[320, 240, 640, 480]", "[322, 238, 644, 476]"),
        ("resized", "thousand", "[322, 119, 644, 476]", "[500, 250, 1000, 1000]"),
        ("absolute", "absolute", "[1.50, 2, 3, 4]", "[1.50, 2, 3, 4]"),
    ],
)
def test_each_unit_becomes_each_other(
    tmp_path: Path, source: str, to: str, before: str, after: str
) -> None:
    picture(tmp_path / "a.png", 640, 480)
    text = '{{"bbox_2d": {}, "label": "in 1999, [5, 6, 7, 8]"}}'
    row = chat("<image>Which?", text.format(before)) | {"images": ["a.png"]}
    (made,) = read(write_rows(tmp_path / "rows.jsonl", [row]), change(source, to))
    assert answer(made) == text.format(after)


def test_all_turns_and_ways_of_writing_are_rescaled_and_y_first_stays_first(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 100, 200)
    turns = [
        ("<image>What is in <box>[[10, 20, 30, 40]]</box>?", "A cat."),
        ("Where?", "<|box_start|>(10,20),(30,40)<|box_end|>"),
        ("As JSON.", '{"box_2d": [20, 10, 40, 30]} {"point_2d": [50, 100]}'),
    ]
    row: dict[str, Any] = {"images": ["a.png"], "messages": []}
    for question, said in turns:
        row["messages"] += chat(question, said)["messages"]
    (made,) = read(write_rows(tmp_path / "rows.jsonl", [row]), change("absolute", "thousand"))
    texts = [*made.texts()]
    assert texts[0] == "What is in <box>[[100, 100, 300, 200]]</box>?"
    assert texts[-3] == "<|box_start|>(100,100),(300,200)<|box_end|>"
    assert texts[-1] == '{"box_2d": [100, 100, 200, 300]} {"point_2d": [500, 500]}'


def test_a_picture_that_its_tag_turns_has_its_upright_size(tmp_path: Path) -> None:
    from PIL import Image

    image = Image.new("RGB", (200, 100))
    turned = image.getexif()
    turned[0x0112] = 6
    image.save(tmp_path / "a.jpg", exif=turned)
    row = chat("<image>Where?", '{"bbox_2d": [50, 50, 100, 200]}') | {"images": ["a.jpg"]}
    (made,) = read(write_rows(tmp_path / "rows.jsonl", [row]), change("absolute", "thousand"))
    assert answer(made) == '{"bbox_2d": [500, 250, 1000, 1000]}'


def test_a_row_that_cannot_be_rescaled_is_refused(tmp_path: Path) -> None:
    for name, width in (("a.png", 56), ("b.png", 84), ("c.png", 84)):
        picture(tmp_path / name, width, 28)
    box = '{"bbox_2d": [1, 2, 42, 28]}'

    def file(images: list[str], text: str = box) -> Path:
        row = chat("<image>" * len(images) + "Where?", text) | {"images": images}
        return write_rows(tmp_path / "rows.jsonl", [row])

    pixels = change("absolute", "thousand")
    assert "its 2 images have different sizes" in refused(file(["a.png", "b.png"]), pixels)
    assert "no image whose size" in refused(file([]), pixels)
    token = "<loc0001><loc0002><loc0003><loc0004>"
    assert "is of one unit" in refused(file(["a.png"], token), pixels)
    (made,) = read(file(["b.png", "c.png"]), pixels)
    assert answer(made) == '{"bbox_2d": [12, 71, 500, 1000]}'
    (made,) = read(file(["a.png", "b.png"]), change("thousand", "unit"))
    assert answer(made) == '{"bbox_2d": [0.001, 0.002, 0.042, 0.028]}'
    (made,) = read(file(["a.png", "b.png"], "No box at all."), pixels)
    assert answer(made) == "No box at all."


def test_a_model_that_has_learnt_rescaled_boxes_is_asked_and_scored_with_such(
    tmp_path: Path,
) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [chat("a", "b")])
    plain = request("rows", messages(file)).run
    own = request("rows", messages(file), change("absolute", "thousand")).run
    other = request("rows", messages(file), change("unit", "thousand")).run
    assert with_own_reading(plain, own, []).data.coordinates == own.data.coordinates
    assert with_own_reading(other, own, []).data.coordinates == other.data.coordinates
    given = ["data.coordinates"]
    assert with_own_reading(plain, own, given).data.coordinates is None


def test_a_wrong_from_is_a_finding_on_the_rows_that_come_out(tmp_path: Path) -> None:
    """Thousandths that are taken for pixels of 640 × 480 become up to 1,562."""
    file = rows_file(tmp_path, "thousand", sizes=((640, 480),))
    run = request(
        "rows", messages(file), "model.family=qwen3_vl", SOON, change("absolute", "thousand")
    ).run
    (audit,) = audit_rows(run)
    (one,) = [each for each in audit.findings if each.rule.startswith("boxes-")]
    assert one.rule in ("boxes-leave-picture", "boxes-of-another-convention")
