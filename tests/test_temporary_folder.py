"""A run of the tests leaves nothing in the system's temporary folder but pytest's own folders."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = "import tempfile; print(tempfile.mkdtemp(prefix='left-'))"
TESTS = f"""
import subprocess, sys, tempfile

def test_leaves_folders():
    tempfile.mkdtemp(prefix="left-")
    subprocess.run([sys.executable, "-c", {FOLDER!r}], check=True)
"""


def test_what_tests_and_their_processes_leave_goes_with_the_session(tmp_path: Path) -> None:
    (tmp_path / "test_leaves.py").write_text(TESTS)
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    del environment["PYTEST_DEBUG_TEMPROOT"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "test_leaves.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    left = [path.name for path in (tmp_path / "temporary").iterdir()]
    assert [name for name in left if not name.startswith("pytest-of-")] == []


def test_this_session_has_a_temporary_folder_for_itself() -> None:
    made = subprocess.run(
        [sys.executable, "-c", FOLDER], capture_output=True, text=True, check=True
    )
    assert Path(made.stdout.strip()).parent == Path(tempfile.gettempdir())
    assert Path(tempfile.gettempdir()).name.startswith("vtool-tests-")
