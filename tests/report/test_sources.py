"""Sources on a run's page: what each has, gave to training, and scores."""

import json
from pathlib import Path
from typing import Any

from tests.report.test_page import Elements, change, lines_of, page_of, write_lines
from vtool.report.run_files import read_run
from vtool.report.sources import source_counts, source_scores, source_sums

COUNTS = {"name": "a", "rows": 81, "kept": 80, "dropped": 1, "limited": 7}
TRAIN = [
    COUNTS | {"tokens": 1500, "supervised_tokens": 150},
    COUNTS | {"name": "<b>", "rows": 20, "kept": 20, "dropped": 0, "limited": 0, "tokens": 500},
]
GAVE: dict[str, Any] = {
    "a": {"weight": 3.0, "repeat": None, "samples": 960, "distinct": 80, "tokens": 18000},
    "<b>": {"weight": None, "repeat": 2.5, "samples": 320, "distinct": 20, "tokens": 8000},
}
SCORES = {"nll": 0.25, "token_accuracy": 0.75, "exact_match": 0.5, "samples": 6}


def with_sources(folder: Path) -> Path:
    data = json.loads((folder / "data.json").read_text())
    change(folder / "data.json", train=data["train"] | {"sources": TRAIN})
    ledger = json.loads((folder / "result.json").read_text())["ledger"] | {"sources": GAVE}
    change(
        folder / "result.json",
        ledger=ledger,
        test_token_accuracy=0.875,
        test_sources={"a": SCORES, "<b>": SCORES | {"nll": 0.5}},
    )
    lines = lines_of(folder / "metrics.jsonl")
    lines[-1] |= {f"validation_{key}/a": value for key, value in SCORES.items()}
    lines[-1] |= {"validation_token_accuracy": 0.6}
    write_lines(folder / "metrics.jsonl", lines)
    return folder


def test_each_source_has_its_counts_and_its_scores(run_folder: Path) -> None:
    run = read_run(with_sources(run_folder))
    counts, scores = source_counts(run), source_scores(run)
    assert counts
    assert [(split, name) for split, name, _ in counts.rows] == [("train", "a"), ("train", "<b>")]
    assert dict(zip(counts.head, counts.rows[0][2], strict=True)) == {
        **{"Rows": "81", "Kept": "80", "Dropped": "1", "Beyond limit": "7", "Tokens": "1,500"},
        **{"An epoch": "weight 3", "Samples": "960", "Of all": "75 %", "Distinct rows": "80"},
        "Tokens trained on": "18,000",
    }
    assert counts.rows[1][2][5] == "each row 2.5 times"
    assert scores
    assert [(split, name, *values) for split, name, values in scores.rows] == [
        ("validation", "all", "50", "0.1", "60 %", "80 %"),
        ("validation", "a", "6", "0.25", "75 %", "50 %"),
        ("test", "all", "12", "0.31", "87.5 %", "83.3 %"),
        ("test", "a", "6", "0.25", "75 %", "50 %"),
        ("test", "<b>", "6", "0.5", "75 %", "50 %"),
    ]
    assert source_sums(run) == []
    text = Elements(page_of(run_folder)).text
    assert "Sources Split Source Rows Kept" in text
    assert "Scores by source" in text
    assert "train <b> 20 20 0" in text


def test_counts_that_do_not_add_up_are_reported(run_folder: Path) -> None:
    with_sources(run_folder)
    data = json.loads((run_folder / "data.json").read_text())
    data["train"]["sources"][0]["kept"] = 79
    change(run_folder / "data.json", train=data["train"])
    ledger = json.loads((run_folder / "result.json").read_text())["ledger"]
    ledger["sources"]["a"]["samples"] = 1
    change(run_folder / "result.json", ledger=ledger)
    text = Elements(page_of(run_folder)).text
    assert "data.json: the kept of the sources of train do not add up." in text
    assert "result.json: the samples of the sources do not add up." in text


def test_one_source_has_no_table_and_odd_values_still_have_a_page(run_folder: Path) -> None:
    assert source_counts(read_run(run_folder)) is source_scores(read_run(run_folder)) is None
    assert "Scores by source" not in page_of(run_folder)
    change(run_folder / "data.json", train={"sources": [{"name": 3, "rows": "x"}, 7, {"rows": 1}]})
    change(run_folder / "result.json", test_sources={"a": 3}, ledger={"sources": [1]})
    assert "Sources" in page_of(run_folder)
