"""The GitHub Action and the hook of pre-commit, which other repositories use."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["id"]: step["run"] for step in ACTION["runs"]["steps"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with two recipes, and a `vtool` on the path."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/one.yaml").write_text("defaults: [digits]\n")
    (tmp_path / "recipes/two.yaml").write_text("defaults: [digits]\noptim: {lrr: 1}\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/vtool").write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m vtool "$@"\n'
    )
    (tmp_path / "bin/vtool").chmod(0o755)
    return tmp_path


def check(
    folder: Path, recipes: str, overrides: str = "", format: str = "github", trusted: str = "false"
) -> subprocess.CompletedProcess[str]:
    variables = {
        "VTOOL_RECIPES": recipes,
        "VTOOL_OVERRIDES": overrides,
        "VTOOL_FORMAT": format,
        "VTOOL_SARIF": "out.sarif",
        "VTOOL_TRUSTED": trusted,
    }
    environment = {
        **os.environ,
        **variables,
        "GITHUB_OUTPUT": str(folder / "output"),
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
    }
    return subprocess.run(
        ["bash", "-c", STEPS["check"]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
def test_the_action_annotates_the_lines_of_a_pull_request(folder: Path) -> None:
    done = check(folder, "recipes/*.yaml digits", "train.steps=60\noptim.lr=1e-3\n")
    assert done.returncode == 1
    assert done.stdout.startswith(
        "::error file=recipes/two.yaml,line=2,col=9,title=unknown-key (VT101)::"
    )
    assert check(folder, "recipes/one.yaml").returncode == 0
    assert check(folder, "recipes/nothing-*.yaml").returncode == 2


@pytest.mark.full
def test_the_action_takes_recipes_for_a_strangers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    (folder / "recipes" / "env.yaml").write_text(
        "defaults: [digits]\nmodel: {attention: '${oc.env:TOKEN}'}\n"
    )
    done = check(folder, "recipes/env.yaml")
    assert "hunter2" not in done.stdout + done.stderr
    assert (done.returncode, "VT008" in done.stdout) == (0, True)
    trusted = check(folder, "recipes/env.yaml", trusted="true")
    assert "hunter2" in trusted.stdout


def test_the_action_writes_sarif_and_names_the_file(folder: Path) -> None:
    assert check(folder, "recipes/two.yaml", format="sarif").returncode == 1
    assert (
        json.loads((folder / "out.sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "VT101"
    )
    assert (folder / "output").read_text() == "sarif-file=out.sarif\n"


def test_the_action_installs_vtool_as_anyone_does_and_so_no_torch() -> None:
    assert 'pip install --quiet "$VTOOL_SOURCE"\n' in STEPS["install"]
    assert "--no-deps" not in STEPS["install"]
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert not {"torch", "transformers", "peft"} & {re.split("[<>=]", one)[0] for one in asked}


def test_the_hook_checks_all_recipes_of_a_commit_at_once(folder: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    files = ["recipes/one.yaml", "recipes/two.yaml"]
    assert all(re.search(hook["files"], file) for file in [*files, "sub/recipes/a.yml"])
    assert not re.search(hook["files"], "configs/optim/adamw.yaml")
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    command = [*shlex.split(hook["entry"]), *files]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "recipes/two.yaml:2:9: error unknown-key (VT101)" in done.stdout
