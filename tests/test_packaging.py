"""The wheel holds all that a run needs, wherever it is installed and wherever it is run."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.installed.environments import build
from vtool.config.shipped import recipe_names, shipped_folder

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built and unpacked as an installer does it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(ROOT),
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        str(folder),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("vtool-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(site: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_recipe_and_group_is_in_it(site: Path) -> None:
    for kind in ("configs", "recipes"):
        here = sorted(
            path.relative_to(shipped_folder(kind)).as_posix()
            for path in shipped_folder(kind).rglob("*.yaml")
        )
        there = sorted(
            path.relative_to(site / "vtool/_share" / kind).as_posix()
            for path in (site / "vtool/_share" / kind).rglob("*.yaml")
        )
        assert here == there


def test_no_test_and_no_script_is_in_it(site: Path) -> None:
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {
        "vtool"
    }


@pytest.mark.full
def test_the_wheel_finds_its_recipes_in_any_folder(site: Path, tmp_path: Path) -> None:
    from_wheel = run(
        site,
        tmp_path,
        "-c",
        "import vtool.config.resources as r; print(r.shipped_folder('recipes'), *r.recipe_names())",
    )
    assert from_wheel.stdout.split() == [
        str(site / "vtool/_share/recipes"),
        *recipe_names(),
    ], from_wheel.stderr
    done = run(site, tmp_path, "-m", "vtool", "validate-config", "digits", "launch.nproc=2")
    assert done.returncode == 0, done.stderr
    assert "  --> recipes/digits.yaml:" in done.stdout
    assert "micro_batch_size: 32" in done.stdout  # the line itself, read from inside the package


def test_a_checkout_finds_its_recipes_in_any_folder(tmp_path: Path) -> None:
    done = run(ROOT, tmp_path, "-m", "vtool", "validate-config", "digits")
    assert done.returncode == 0, done.stderr
    assert shipped_folder("recipes") == ROOT / "recipes"


def test_the_wheel_says_that_it_has_types(site: Path) -> None:
    assert (site / "vtool/py.typed").is_file()


@pytest.mark.full
def test_built_twice_both_archives_are_the_same_to_the_byte(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        made.append({file.name: file.read_bytes() for file in build(tmp_path / name)})
        for file in (ROOT / "vtool").glob("*.py"):
            os.utime(file)  # what a checkout's files are dated with is no part of them
    assert made[0] == made[1]
    assert len(made[0]) == 2
