"""Real runs under the real watch: each mistake is found by its rule, and healthy runs by none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch import tables
from tests.watch.runs import healthy, planted
from tests.watch.runs.__main__ import place
from vtool.diagnostics.result import Result
from vtool.watch.conclude import conclude_folder
from vtool.watch.folder import INJECT, WatchOptions, watched_environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make every run: the folder with a folder of facts for each."""
    folder = tmp_path_factory.mktemp("runs")
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.watch.runs", str(folder)],
        env=watched_environment(folder / "none", WatchOptions(), own),
        capture_output=True,
        text=True,
        check=False,
    )
    errors = "\n".join(file.read_text() for file in folder.glob("*/error-*.txt"))
    assert done.returncode == 0, done.stderr[-2000:] + errors
    return folder


def concluded(folder: Path, name: str) -> Result:
    (result,) = conclude_folder(place(folder, name), "run", None)
    return result


@pytest.mark.full
@pytest.mark.parametrize("name", healthy.RUNS)
def test_nothing_is_found_in_a_healthy_run(made: Path, name: str) -> None:
    result = concluded(made, f"healthy: {name}")
    assert [one for one in result.findings if one.severity != "note"] == []
    assert result.verdict == "clean"
    assert result.checks["targets-not-next"] == "passed"


@pytest.mark.full
@pytest.mark.parametrize("name", planted.RUNS)
def test_a_mistake_in_a_run_is_found_by_its_rule(made: Path, name: str) -> None:
    result, expected = concluded(made, f"planted: {name}"), planted.RUNS[name]
    found = {(one.rule, one.severity) for one in result.findings}
    assert (expected.rule, expected.severity) in found, result.findings
    errors = {one.rule for one in result.findings if one.severity == "error"}
    assert errors <= {expected.rule, *expected.also}, result.findings
    warnings = {one.rule for one in result.findings if one.severity == "warning"}
    assert expected.severity != "note" or not warnings, result.findings


def test_the_page_lists_these_runs() -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    assert page == tables.renew(page), "renew docs/watch.md: make goldens"


def test_the_injected_folder_is_there() -> None:
    assert (INJECT / "sitecustomize.py").is_file()
