"""Runs are compared by their validation rows, and found by the name of their sweep."""

import json
from pathlib import Path

import pytest

from tests.report.test_page import Elements
from vtool.report import write_report
from vtool.report.found_runs import find_runs
from vtool.report.ranking import rank, validation_of
from vtool.report.run_files import read_run


def made(folder: Path, lr: float, scores: dict[int, float], **result: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"run:\n  name: {folder.name}\noptim:\n  lr: {lr}\n")
    lines = [
        {
            "step": step,
            "validation_nll": nll,
            "validation_exact_match": 0.5,
            "validation_samples": 4,
        }
        for step, nll in scores.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = {"status": "finished", "test_exact_match": 0.9, "test_nll": 0.01, "test_samples": 9}
    (folder / "result.json").write_text(json.dumps(ended | result))
    return folder


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    return [
        made(Path("runs/mine-lr=0.1"), 0.1, {2: 0.5, 4: 0.9}),
        made(Path("runs/mine-lr=0.2"), 0.2, {2: 0.9, 4: 0.7}),
        made(Path("runs/mine-lr=0.3"), 0.3, {4: float("nan")}),
    ]


def test_runs_are_sorted_by_validation_and_the_best_is_marked(runs: list[Path]) -> None:
    settings, ranked = rank([read_run(run) for run in runs], ("run.name",))
    assert settings == ("optim.lr",)
    assert [(each.position, each.values, each.best) for each in ranked] == [
        (1, ("0.2",), True),
        (0, ("0.1",), False),
        (2, ("0.3",), False),
    ]


def test_a_run_that_exports_its_best_step_is_compared_by_that_one(tmp_path: Path) -> None:
    best = {"step": 2, "exported": True}
    found = validation_of(read_run(made(tmp_path / "run", 0.1, {2: 0.5, 4: 0.9}, best=best)))
    assert found is not None
    assert found.nll == 0.5


def test_the_page_compares_by_validation_and_leaves_test_scores_to_each_run(
    runs: list[Path], tmp_path: Path
) -> None:
    page = write_report(runs, tmp_path / "page.html").read_text()
    compared, _, own = page.partition('<details class="run">')
    assert "mine-lr=0.2" in compared.partition("best</strong>")[0]
    assert "Test exact match" not in Elements(compared).text
    assert "Test exact match" in Elements(own).text
    assert "choose no run" in Elements(compared).text


def test_runs_of_other_validation_rows_are_reported_and_none_is_the_best(
    runs: list[Path], tmp_path: Path
) -> None:
    notice = "scored on different validation rows"
    for number, run in enumerate(runs[:2]):
        data = {"validation": {"kept": 4, "files": [{"path": "v.jsonl", "sha256": "a" * 64}]}}
        (run / "data.json").write_text(json.dumps(data))
        page = write_report(runs[:2], tmp_path / "page.html").read_text()
        assert notice not in page, number
        assert page.count("best</strong>") == 1
    data["validation"]["files"][0]["sha256"] = "b" * 64
    (runs[1] / "data.json").write_text(json.dumps(data))
    page = write_report(runs[:2], tmp_path / "page.html").read_text()
    assert notice in Elements(page).text
    assert "best</strong>" not in page


def test_many_settings_that_differ_are_reported_once(runs: list[Path], tmp_path: Path) -> None:
    for number, run in enumerate(runs):
        more = "".join(f"  x{each}: {number}\n" for each in range(7))
        (run / "config.yaml").write_text(f"run:\n  name: {run.name}\noptim:\n{more}")
    compared = write_report(runs, tmp_path / "page.html").read_text().partition("Curves</h2>")[0]
    assert "7 settings differ" in compared
    assert compared.count("optim.x3") == 1


def test_without_validation_the_page_shows_what_there_is(tmp_path: Path) -> None:
    folders = [made(tmp_path / name, 0.1, {}) for name in ("a", "b")]
    text = Elements(write_report(folders, tmp_path / "page.html").read_text()).text
    assert "By validation" not in text
    assert "Test exact match" in text


def test_a_sweep_is_found_by_its_name_or_its_folder(runs: list[Path]) -> None:
    made(Path("runs/other-lr=1"), 1, {})
    assert find_runs([Path("mine")]) == runs
    assert find_runs([Path("mine"), runs[0]]) == [*runs, runs[0]]
    assert find_runs([runs[1]]) == [runs[1]]
    swept = [made(Path(f"swept/seed={seed}"), 1, {}) for seed in (1, 2)]
    assert find_runs([Path("swept")]) == swept
    whole = made(Path("runs/whole"), 1, {})
    assert find_runs([Path("whole")]) == [whole]
    assert find_runs([Path("m[i]ne")]) == [Path("m[i]ne")]
    assert find_runs([Path("nothing")]) == [Path("nothing")]
