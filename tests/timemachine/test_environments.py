"""Wheels side by side over one torch."""

import errno
import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from timemachine import environments
from timemachine.environments import NotHad, _made_whole, make_environment


def make_wheel(folder: Path, version: str) -> None:
    folder.mkdir(exist_ok=True)
    info = f"oldpackage-{version}.dist-info"
    with zipfile.ZipFile(folder / f"oldpackage-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("oldpackage.py", f"version = '{version}'\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: oldpackage\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


SEES = (
    "import importlib.metadata as m, importlib.util as u, oldpackage;"
    "print(oldpackage.version, m.version('torch'), u.find_spec('transformers'))"
)


@pytest.mark.full
def test_a_side_sees_its_wheels_and_torch_and_nothing_else_of_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "offered", "1.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "offered"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    made = make_environment(tmp_path / "cache", ["oldpackage==1.0"], [])
    seen = subprocess.run([made.python, "-c", SEES], capture_output=True, text=True, check=True)
    assert seen.stdout.split() == ["1.0", importlib.metadata.version("torch"), "None"]
    assert made.versions["oldpackage"] == "1.0"
    (tmp_path / "offered/oldpackage-1.0-py3-none-any.whl").unlink()
    again = make_environment(tmp_path / "cache", ["oldpackage==1.0"], [])
    assert again.python == made.python  # nothing is fetched twice
    with pytest.raises(NotHad, match=r"oldpackage==2\.0"):
        make_environment(tmp_path / "cache", ["oldpackage==2.0"], [])


@pytest.mark.full
def test_a_commit_is_filled_from_a_repository_that_is_given(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = [
            "git",
            "-C",
            str(repository),
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            *words,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    repository = tmp_path / "repository"
    repository.mkdir()
    git("init", "-q")
    (repository / "oldpackage.py").write_text("version = 'first'\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    first = git("rev-parse", "HEAD")
    (repository / "oldpackage.py").write_text("version = 'second'\n")
    git("commit", "-q", "-a", "-m", "second")
    wheels = [f"oldpackage@{first[:9]}"]
    with pytest.raises(NotHad, match="--checkout oldpackage=DIR"):
        make_environment(tmp_path / "cache", wheels, [])
    with pytest.raises(NotHad, match="has no commit 0000000 of oldpackage"):
        make_environment(tmp_path, ["oldpackage@0000000"], [], None, {"oldpackage": repository})
    made = make_environment(tmp_path / "cache", wheels, [], None, {"oldpackage": repository})
    assert (made.trees[0].folder / "oldpackage.py").read_text() == "version = 'first'\n"
    assert made.trees[0].sha256 == first
    assert made.versions["oldpackage"] == first[:9]


def test_a_package_that_is_not_installed_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotHad, match="no-such-package is not installed"):
        make_environment(tmp_path, [], ["no-such-package"])


def test_what_an_environment_imports_at_its_start_goes_along(tmp_path: Path) -> None:
    site = environments._site(tmp_path)
    site.mkdir(parents=True)
    for name in ("first.pth", "first.py", "paths.pth"):
        (site / name).write_text("")
    links = environments._all_links(tmp_path, set())
    assert links == {"first.pth": site / "first.pth", "first.py": site / "first.py"}


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(environments, "_tree", full)
    with pytest.raises(NotHad, match="is full"):
        make_environment(tmp_path, ["oldpackage==1.0"], [])


def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "trees/old-1.0"

    def stop_half_way() -> None:
        with _made_whole(folder) as made:
            made.mkdir()
            raise NotHad("no registry answers")

    with pytest.raises(NotHad):
        stop_half_way()
    assert list(folder.parent.iterdir()) == []
    with _made_whole(folder) as made:
        made.mkdir()
        (made / "file").write_text("first")
        with _made_whole(folder) as other:  # of a run at the same time, which is done sooner
            other.mkdir()
            (other / "file").write_text("second")
    assert (folder / "file").read_text() == "second"
    assert list(folder.parent.iterdir()) == [folder]


def test_what_a_killed_run_left_is_removed_and_what_another_one_fills_is_not(
    tmp_path: Path,
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, others = tmp_path / f"part-{ended.pid}-a", tmp_path / f"part-{os.getppid()}-b"
    for folder in (left, others):
        (folder / "made").mkdir(parents=True)
    with _made_whole(tmp_path / "whole") as made:
        made.mkdir()
    assert {one.name for one in tmp_path.iterdir()} == {others.name, "whole"}
