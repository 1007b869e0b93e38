"""The profile's part of the page."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_page import ATTACK, Elements, page_of


def rank(**changes: Any) -> dict[str, Any]:
    split = {
        "data": 0.1,
        "forward": 0.3,
        "backward": 0.5,
        "optimizer": 0.06,
        "evaluation": 0,
        "checkpoint": 0,
        "other": 0.04,
    }
    kernels = [
        {
            "name": "aten::mm",
            "calls": 1234,
            "self_us": 250000.0,
            "total_us": 3e5,
            "share": 0.25,
            "flops": 1,
            "shapes": "",
        }
    ]
    made: dict[str, Any] = {
        **{
            "steps": [{}, {}],
            "split": split,
            "seconds_a_step": 0.5,
            "seconds_a_step_before": 0.4,
            "speeds_are_of": "steps before",
        },
        **{
            "tokens_per_second": 1550.0,
            "samples_per_second": 74.0,
            "mfu": 0.112,
            "mfu_why": "",
            "peak_flops_per_second": 38e9,
        },
        **{
            "peak_memory_bytes": 914 * 2**20,
            "peak_memory_is": "of the process",
            "memory": [[0, 0], [0.5, 2**20], [1, 5]],
            "memory_is": "of tensors",
        },
        **{"kernels": kernels, "left_out_of_trace": 0, "files": ["rank-0-steps-5-6.trace.json.gz"]},
    }
    return made | changes


def write(run: Path, *ranks: dict[str, Any], **changes: Any) -> None:
    interval = {
        "tool": "torch",
        "steps": [5, 6],
        "asked": [5, 6],
        "world": len(ranks),
        "device": "CPU",
        "dtype": "float32",
    }
    interval |= {"ranks": {str(place): one for place, one in enumerate(ranks)}} | changes
    (run / "profile").mkdir()
    (run / "profile/summary.json").write_text(json.dumps({"version": 1, "intervals": [interval]}))


def test_it_shows_the_split_of_each_rank_the_operations_and_the_memory(run_folder: Path) -> None:
    write(run_folder, rank(), rank())
    page = Elements(page_of(run_folder))
    assert "Steps 5 to 6 , recorded by torch on 2 ranks" in page.text
    assert page.text.count("forward 30 % 150 ms") == 2
    widths = [
        one["style"]
        for one in page.having("i")
        if (one.get("class") or "").startswith("part-") and one.get("style")
    ]
    assert (
        sum(float(str(width).removeprefix("width:").removesuffix("%")) for width in widths) == 200
    )
    assert "aten::mm 1,234 250.0 25.0 %" in page.text
    (line,) = page.having("polyline")
    assert line["points"] == "0.0,150.0 320.0,0.0 640.0,150.0"
    assert "11.2 % of 38 GFLOP/s" in page.text


def test_what_is_not_known_is_said_and_never_0(run_folder: Path) -> None:
    write(
        run_folder,
        rank(mfu=None, mfu_why="nobody counted", memory=[], kernels=[], left_out_of_trace=7),
        asked=[5, 9],
    )
    text = Elements(page_of(run_folder)).text
    assert "MFU not measured nobody counted" in text
    assert "Asked for were steps 5 to 9." in text
    assert "rank 0: 7 operations" in text


@pytest.mark.full
def test_a_run_without_a_profile_has_no_such_part_and_a_damaged_one_says_so(
    run_folder: Path,
) -> None:
    assert "profile" not in [
        one.get("id") for one in Elements(page_of(run_folder)).having("section")
    ]
    (run_folder / "profile").mkdir()
    for text in ("{", "[]", '{"intervals": [{}]}', '{"intervals": 5}'):
        (run_folder / "profile/summary.json").write_text(text)
        assert "summary.json is damaged" in page_of(run_folder)


def test_names_cannot_write_html(run_folder: Path) -> None:
    write(run_folder, rank(kernels=[rank()["kernels"][0] | {"name": ATTACK}]), device=ATTACK)
    assert "<script" not in page_of(run_folder)


def test_ranks_that_are_not_all_of_them_are_named(run_folder: Path) -> None:
    write(run_folder, rank(), world=4)
    assert "recorded by torch on rank 0 of 4" in Elements(page_of(run_folder)).text


def test_of_many_ranks_most_are_folded_away(run_folder: Path) -> None:
    write(run_folder, *[rank()] * 11)
    page = Elements(page_of(run_folder))
    assert "recorded by torch on 11 ranks" in page.text
    assert "3 more ranks" in page.text
    assert page.text.count("forward 30 % 150 ms") == 11
