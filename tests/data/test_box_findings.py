"""Findings about boxes: rectangles drawn at known places, in each unit, with each fault."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.data.drawn_boxes import LARGE, SIZES, rows_file
from tests.rows import chat, picture, write_rows
from tests.runs import messages, request
from vtool.data.box_findings import BOX_RULES
from vtool.diagnostics import Diagnostic
from vtool.verification.rows import Audit, audit_rows

SOON = "data.image.max_pixels=50176"
"""Small pictures for the model; what is told of boxes in other units is the same."""
QWEN3, QWEN25 = ("model.family=qwen3_vl", SOON), ("model.family=qwen2_5_vl",)
SHRUNK = "data.image.max_pixels=602112"
RESIZED = {(2000, 1600): (840, 672), (2400, 1600): (924, 616)}
"""Sizes of 28 · n by hand: 2000 / √(2000 · 1600 / 602112) = 867.6, of which 28 · 30 are left."""


def audited(file: Path, *overrides: str) -> Audit:
    (audit,) = audit_rows(request("rows", messages(file), *overrides).run, family_named=True)
    return audit


def found(file: Path, *overrides: str) -> list[Diagnostic]:
    return [one for one in audited(file, *overrides).findings if one.rule.startswith("boxes-")]


def rules(findings: Sequence[Diagnostic]) -> list[str]:
    return [one.rule for one in findings]


def resized(width: int, height: int) -> tuple[int, int]:
    return RESIZED[width, height]


def quads(boxes: Sequence[list[float]]) -> str:
    return "".join(f"<|box_start|>({a},{b}),({c},{d})<|box_end|>" for a, b, c, d in boxes)


@pytest.mark.parametrize("sizes", [SIZES, LARGE, ((640, 480),)], ids=["mixed", "large", "one"])
@pytest.mark.parametrize("unit", ["absolute", "thousand", "hundred", "unit"])
def test_a_unit_is_told_and_is_a_finding_where_the_family_has_another(
    tmp_path: Path, unit: str, sizes: Sequence[tuple[int, int]]
) -> None:
    audit = audited(rows_file(tmp_path, unit, sizes=sizes), *QWEN3)
    assert audit.ledger.boxes.unit == unit
    assert (audit.ledger.boxes.rows, audit.ledger.boxes.boxes) == (24, 48)
    of_boxes = [one for one in audit.findings if one.rule in BOX_RULES]
    if unit == "thousand":
        assert of_boxes == []
    else:
        (one,) = of_boxes
        assert (one.rule, one.severity) == ("boxes-of-another-convention", "warning")
        assert "has learnt 0 to 1000" in one.message
        assert one.help == f"data.coordinates={{from: {unit}, to: thousand}} rescales them"


def test_pixels_of_the_resized_picture_are_told_from_those_of_the_original(tmp_path: Path) -> None:
    reading = (*QWEN25, SHRUNK)
    shown = rows_file(tmp_path, "resized", 16, LARGE, resized=resized, name="a.jsonl")
    audit = audited(shown, *reading)
    assert (audit.findings, audit.ledger.boxes.unit) == ((), "resized")
    (one,) = found(rows_file(tmp_path, "absolute", 16, LARGE, name="b.jsonl"), *reading)
    assert one.rule == "boxes-of-another-convention"
    assert one.help == "data.coordinates={from: absolute, to: resized} rescales them"
    (one,) = found(rows_file(tmp_path, "thousand", 16, LARGE, name="c.jsonl"), *reading)
    assert one.help == "data.coordinates={from: thousand, to: resized} rescales them"


def test_pictures_that_are_hardly_resized_need_no_other_pixels(tmp_path: Path) -> None:
    assert found(rows_file(tmp_path, "absolute", 12), *QWEN25) == []
    assert found(rows_file(tmp_path, "thousand", write=quads), "model.family=qwen2_vl", SOON) == []
    assert found(rows_file(tmp_path, "thousand"), "model.family=glm4v", SOON) == []


def test_without_a_named_model_no_unit_is_wrong(tmp_path: Path) -> None:
    file = rows_file(tmp_path, "thousand")
    run = request("rows", messages(file), SOON).run
    (audit,) = audit_rows(run)
    assert audit.findings == ()
    assert "no model is named" in audit.ledger.boxes.unlooked()["boxes-of-another-convention"]


@pytest.mark.parametrize(
    "unit",
    [
        lambda number: "thousand" if number < 12 else "absolute",
        lambda number: "unit" if number == 5 else "thousand",
    ],
    ids=["appended", "one-row"],
)
def test_two_units_in_a_file_are_a_mix(tmp_path: Path, unit: Any) -> None:
    findings = found(rows_file(tmp_path, unit, sizes=((640, 480),)), *QWEN3)
    assert rules(findings) == ["boxes-mix-conventions"]
    assert "in 0 to 1000 (rows.jsonl:1, " in findings[0].message
    assert ("rows.jsonl:13" in findings[0].message) == (unit(13) == "absolute")
    assert ("1 in 0 to 1 (rows.jsonl:6)" in findings[0].message) == (unit(5) == "unit")


def test_thousandths_behind_pixels_are_a_mix_though_all_fit_in_a_thousand(tmp_path: Path) -> None:
    sizes = ((640, 480), (320, 240), (800, 600), (900, 700), (400, 300))
    for first in ("absolute", "thousand"):
        other = "thousand" if first == "absolute" else "absolute"
        file = rows_file(
            tmp_path,
            lambda number, first=first, other=other: first if number < 20 else other,
            40,
            sizes,
            name=f"{first}.jsonl",
        )
        (one,) = found(file)
        assert one.rule == "boxes-mix-conventions"
        assert "20 in 0 to 1000" in one.message
    ordered = rows_file(tmp_path, "thousand", 40, sorted(sizes * 8, reverse=True), name="ok.jsonl")
    assert found(ordered, *QWEN3) == []


def test_shuffled_units_are_a_mix_where_rows_of_each_leave_the_other(tmp_path: Path) -> None:
    file = rows_file(
        tmp_path,
        lambda number: ("absolute", "thousand")[number % 2],
        sizes=((1280, 720), (720, 1280), (1280, 720)),
    )
    assert rules(found(file, *QWEN3)) == ["boxes-mix-conventions"]


def test_two_sources_of_different_units_are_a_mix(tmp_path: Path) -> None:
    one = rows_file(tmp_path, "thousand", name="one.jsonl")
    two = rows_file(tmp_path, "absolute", sizes=((640, 480),), name="two.jsonl")
    both = f"data.train=[{{format: messages, path: {one}}}, {{format: messages, path: {two}}}]"
    (audit,) = audit_rows(request("rows", both, *QWEN3).run, family_named=True)
    (mix,) = [one for one in audit.findings if one.rule in BOX_RULES]
    assert mix.rule == "boxes-mix-conventions"
    assert "24 in 0 to 1000 (one.jsonl:1" in mix.message
    assert "24 in pixels of the picture (two.jsonl:1" in mix.message


@pytest.mark.parametrize(
    ("family", "unit", "far"), [(QWEN3, "thousand", 1400), (QWEN25, "absolute", 5000)]
)
def test_a_box_beyond_its_picture_is_a_finding(
    tmp_path: Path, family: tuple[str, ...], unit: str, far: int
) -> None:
    def change(number: int, box: list[float]) -> list[float]:
        return [*box[:2], far, box[3]] if number == 7 else box

    (one,) = found(rows_file(tmp_path, unit, change=change), *family)
    assert one.rule == "boxes-leave-picture"
    assert f"in 1 (rows.jsonl:8): rows.jsonl:8 goes up to x {far}, " in one.message


def test_inverted_and_empty_boxes_are_counted(tmp_path: Path) -> None:
    def change(number: int, box: list[float]) -> list[float]:
        left, top, right, bottom = box
        return {3: [right, top, left, bottom], 4: [left, top, left, bottom]}.get(number, box)

    (one,) = found(rows_file(tmp_path, "thousand", change=change), *QWEN3)
    assert one.rule == "boxes-inverted"
    assert "of 48 boxes and points, 4 in 2 rows" in one.message
    assert "(rows.jsonl:4, rows.jsonl:5)" in one.message


def test_width_and_height_in_the_place_of_a_corner_is_guessed(tmp_path: Path) -> None:
    def change(_: int, box: list[float]) -> list[float]:
        return [box[0], box[1], box[2] - box[0], box[3] - box[1]]

    findings = found(rows_file(tmp_path, "absolute", change=change), *QWEN25)
    inverted = next(one for one in findings if one.rule == "boxes-inverted")
    assert inverted.help is not None
    assert "[x, y, width, height]" in inverted.help


def test_a_form_of_another_family_is_of_its_own_unit(tmp_path: Path) -> None:
    def locations(boxes: Sequence[list[float]]) -> str:
        return " ; ".join(
            "".join(f"<loc{min(1023, round(v * 1.024)):04}>" for v in (b, a, d, c)) + " rectangle"
            for a, b, c, d in boxes
        )

    (one,) = found(rows_file(tmp_path, "thousand", write=locations), *QWEN3)
    assert one.rule == "boxes-of-another-convention"
    assert "0 to 1023 (<loc0000>)" in one.message


def test_few_rows_tell_nothing_and_are_no_finding(tmp_path: Path) -> None:
    audit = audited(rows_file(tmp_path, "absolute", count=2), *QWEN3)
    assert (audit.findings, audit.ledger.boxes.unit) == ((), None)
    assert "do not tell" in audit.ledger.boxes.unlooked()["boxes-of-another-convention"]


def test_rows_without_boxes_say_nothing(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    texts = [
        ("List the prices.", "[40, 30, 20, 10]"),
        ("Detect outliers.", "[90, 3, 12, 1]"),
        ("Where is it?", json.dumps({"date": [2024, 1, 2, 3]})),
        ("Read the formula.", "f(4, 3, 2, 1) = [1, 2, 3, 4]"),
    ]
    rows = [
        chat(f"<image>{question} ({number})", answer) | {"images": ["a.png"]}
        for number, (question, answer) in enumerate(texts * 4)
    ]
    rows.append(chat("A box without a picture?", '{"bbox_2d": [9, 9, 1, 1]}'))
    audit = audited(write_rows(tmp_path / "rows.jsonl", rows), *QWEN3)
    assert [one for one in audit.findings if one.rule in BOX_RULES] == []
    assert audit.ledger.boxes.rows == 0
    assert audit.ledger.boxes.unlooked() == {}
    assert "boxes" not in audit.ledger.as_dict()


def test_healthy_sets_that_lie_in_a_part_of_their_pictures_are_not_accused(tmp_path: Path) -> None:
    def header(_: int, box: list[float]) -> list[float]:
        """Return a box in the upper left, as of a logo."""
        return [round(value * 0.3) for value in box]

    assert found(rows_file(tmp_path, "thousand", change=header, sizes=((640, 480),)), *QWEN3) == []
    assert (
        found(
            rows_file(tmp_path, "absolute", change=header, sizes=LARGE[:1]),
            *QWEN25,
            "data.image.max_pixels=12845056",
        )
        == []
    )
