"""The folder of a run is looked at before the recipe is proved, and left as it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import request
from vtool.diagnostics import Findings
from vtool.training.run_folder import RunFolder
from vtool.training.start import check_folder


def looked_at(folder: Path, *overrides: str) -> str | None:
    """The rule that a look at a run's folder finds broken; it has to leave no trace."""
    before = sorted(folder.parent.rglob("*"))
    made = request("digits", f"run.dir={folder}", *overrides)
    try:
        check_folder(made.run, made.effective)
    except Findings as findings:
        return findings.diagnostics[0].rule
    finally:
        assert sorted(folder.parent.rglob("*")) == before
    return None


def test_the_folder_is_looked_at_before_the_proofs_with_the_findings_of_the_start(
    tmp_path: Path,
) -> None:
    assert looked_at(tmp_path / "new/run") is None
    (tmp_path / "file").touch()
    assert looked_at(tmp_path / "file/run") == "run-folder-unwritable"
    (tmp_path / "mine").mkdir()
    assert looked_at(tmp_path / "mine") is None
    (tmp_path / "mine/notes.txt").touch()
    assert looked_at(tmp_path / "mine") == "run-folder-not-empty"


def test_a_run_of_other_settings_and_one_that_trains_are_seen_before_the_proofs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    folder = RunFolder(path)
    folder.lock()
    try:
        script = (
            "import sys\nfrom tests.runs import request\n"
            "from vtool.training.start import check_folder\n"
            "made = request('digits', f'run.dir={sys.argv[1]}')\n"
            "check_folder(made.run, made.effective)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
        )
        assert "run-in-use" in done.stderr
    finally:
        folder.unlock()
    (path / "config.yaml").write_text(request("digits", f"run.dir={path}").config_yaml)
    assert looked_at(path) is None
    assert looked_at(path, "optim.lr=1e-5") == "run-folder-taken"
    assert looked_at(path, "checkpoint.resume=never") == "run-folder-taken"


@pytest.mark.skipif(os.geteuid() == 0, reason="not run: root may write everywhere")
def test_a_folder_without_permission_is_seen_before_the_proofs(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert looked_at(tmp_path / "closed/run") == "run-folder-unwritable"
