"""Classes whose code was changed since a commit are distinguished from the others, by git."""

import subprocess
from pathlib import Path

import pytest

from vtool.loading.probe.changed import changed_files, changed_subjects
from vtool.loading.probe.errors import NotRun

FILES = {
    "fw/__init__.py": "",
    "fw/layers.py": "",
    "fw/models/__init__.py": "",
    "fw/models/utils.py": "from fw.layers import nothing\n",
    "fw/models/base.py": "from .utils import load\n",
    "fw/models/child.py": "def late():\n    from . import base\n",
    "fw/models/alone.py": "import torch\n",
    "fw/models/large/__init__.py": "",
    "fw/models/large/on_gpus.py": "import fw.models.alone\n",
}
MODULES = {
    "Base": "fw.models.base",
    "Child": "fw.models.child",
    "Alone": "fw.models.alone",
    "Large": "fw.models.large",
}


def git(folder: Path, *arguments: str) -> None:
    name = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    subprocess.run(["git", "-C", folder, *name, *arguments], check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "more")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    git(tmp_path, "tag", "start")
    return tmp_path / "fw"


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("models/base.py", ("Base", "Child")),
        ("models/utils.py", ("Base", "Child")),
        ("models/alone.py", ("Alone", "Large")),
        ("models/large/on_gpus.py", ("Large",)),
        ("layers.py", ()),
    ],
)
def test_a_class_counts_by_its_file_and_by_what_that_imports_of_models(
    package: Path, file: str, names: tuple[str, ...]
) -> None:
    assert changed_subjects(MODULES, package, "start") == ()
    (package / file).write_text((package / file).read_text() + "# changed\n")
    assert changed_subjects(MODULES, package, "start") == names  # as it lies there
    commit(package)
    assert changed_subjects(MODULES, package, "start") == names
    assert changed_subjects(MODULES, package, "HEAD") == ()


def test_what_the_other_branch_has_changed_does_not_count(package: Path) -> None:
    git(package, "checkout", "-q", "-b", "other")
    (package / "models/base.py").write_text("# theirs\n")
    commit(package)
    git(package, "checkout", "-q", "-")
    (package / "models/child.py").write_text("# ours\n")
    commit(package)
    assert changed_subjects(MODULES, package, "other") == ("Child",)


def test_a_file_that_git_does_not_know_yet_counts(package: Path) -> None:
    (package / "models/added.py").write_text("")
    assert changed_subjects({"Added": "fw.models.added"}, package, "start") == ("Added",)


def test_a_class_of_an_unknown_module_counts_where_anything_was_changed(package: Path) -> None:
    assert changed_subjects({"Odd": None}, package, "start") == ()
    (package / "layers.py").write_text("# changed\n")
    assert changed_subjects({"Odd": None}, package, "start") == ("Odd",)


def test_what_cannot_be_compared_is_reported(package: Path) -> None:
    for ref in ("nosuch", "--help", "start^{tree}"):
        with pytest.raises(NotRun, match="git knows no commit"):
            changed_files(package, ref)
    git(package, "checkout", "-q", "--orphan", "apart")
    (package / "layers.py").write_text("# of another history\n")
    commit(package)
    with pytest.raises(NotRun, match="no commit in common"):
        changed_files(package, "start")


def test_an_installed_package_is_distinguished_from_a_checkout(package: Path) -> None:
    installed = package.parent / "env" / "other"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    (package.parent / ".gitignore").write_text("env\n")
    with pytest.raises(NotRun, match="that git does not keep"):
        changed_files(installed, "start")


def test_a_folder_outside_of_any_checkout_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(NotRun, match="lies in no git checkout"):
        changed_files(tmp_path, "HEAD")
