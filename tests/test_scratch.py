"""Folders for a while: removed in the end, and by the next one after a `kill -9`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vtool.scratch import scratch_folder

HOLD = """
import sys, time
from vtool.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "file").write_text("")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def hold(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that holds a folder; return both."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert process.stdout
    return process, Path(process.stdout.readline().strip())


def grow_old(folder: Path) -> None:
    then = time.time() - 3600
    os.utime(folder, (then, then))


def test_a_folder_goes_with_its_files(temporary: Path) -> None:
    with scratch_folder() as folder:
        (folder / "sub").mkdir()
        (folder / "sub/file").write_text("a")
        assert folder.parent == temporary
    assert list(temporary.iterdir()) == []


def test_what_kill_9_left_is_removed_and_what_is_in_use_stays(temporary: Path) -> None:
    living, in_use = hold(temporary)
    killed, left = hold(temporary)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    try:
        with scratch_folder():
            assert left.exists(), "it is young"
        grow_old(left)
        grow_old(in_use)
        with scratch_folder():
            assert not left.exists()
            assert (in_use / "file").exists()
    finally:
        living.kill()
        living.wait()
    for process in (living, killed):
        assert process.stdout
        process.stdout.close()


def test_a_folder_of_the_users_stays_whatever_its_name(temporary: Path) -> None:
    (temporary / "vtool-tmp-mine").mkdir()
    (temporary / "vtool-tmp-mine/.lock").write_text("")
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere/.vtool-scratch").write_text("")
    (temporary / "vtool-tmp-link").symlink_to(temporary / "elsewhere")
    for folder in temporary.iterdir():
        grow_old(folder)
    with scratch_folder():
        pass
    names = sorted(one.name for one in temporary.iterdir())
    assert names == ["elsewhere", "vtool-tmp-link", "vtool-tmp-mine"]
    assert (temporary / "elsewhere/.vtool-scratch").exists()
