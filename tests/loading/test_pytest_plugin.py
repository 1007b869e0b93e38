"""The pytest fixture for model authors, as docs/load-check.md shows it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.loading import models
from vtool.diagnostics import Findings
from vtool.loading import check_load_weights

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/load-check.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## In a model author's own tests\n")[2].partition("\n## ")[0]
MODEL, TEST, MENDED = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
PRINTED = [
    line.strip() for line in SECTION.partition("-m pytest -q\n")[2].partition("\n\n")[0].split("\n")
]


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run pytest as its own process, which finds the fixture by vtool's entry point alone."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


@pytest.mark.full
def test_the_pages_example_fails_as_it_says_and_passes_once_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "test_model.py").write_text(TEST)
    failed = run_pytest(tmp_path)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    for line in PRINTED:
        pattern = ".*".join(map(re.escape, line.split("…")))
        assert re.search(f"^{pattern}", failed.stdout, re.MULTILINE), line
    shown = failed.stdout.partition("short test summary")[0]
    assert "vtool/loading/testing.py" not in shown.replace("vtool.loading.testing", "")
    before = MODEL.partition("    def load_weights")[0]
    (tmp_path / "model.py").write_text(before + MENDED)
    passed = run_pytest(tmp_path)
    assert passed.returncode == 0, passed.stdout
    assert "1 passed" in passed.stdout


def test_an_error_says_its_line_and_what_to_do_and_is_a_finding() -> None:
    with pytest.raises(Findings) as raised:
        check_load_weights(models.KeepsAll, models.checkpoint(), checks=["stale-reference"])
    first, second, third, *_ = str(raised.value).split("\n")
    assert first == "1 error"
    assert second.startswith("error[stale-reference VT401]: KeepsAll: 4 parameters hold bytes")
    assert third.startswith(f"  --> {models.__file__}:")
    assert "kept.append((name, tensor))" in str(raised.value)
    assert "help: Copy each tensor" in str(raised.value)


def test_what_cannot_be_loaded_at_all_is_an_error_too() -> None:
    with pytest.raises(Findings, match="load-failed"):
        check_load_weights(models.not_a_model, {"a": torch.zeros(1)})
