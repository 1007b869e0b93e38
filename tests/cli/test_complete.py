"""Completion in a shell, in typer's own protocol; it costs little and prints nothing else."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vtool.cli import complete
from vtool.cli.app import app
from vtool.engines.registry import ENGINES

VTOOL = "import sys; sys.argv = ['vtool']; from vtool.cli.app import main; main()"
HERE = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def words(line: str, shell: str = "bash") -> list[str]:
    """Return the completions at the end of a line, as the shell gets them."""
    typed = line.split(" ")
    environment = {
        "_VTOOL_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(typed) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="vtool")
    assert done.exit_code == 0, done.output
    return [line for line in done.stdout.split("\n") if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_recipes_settings_and_rules_are_completed(shell: str) -> None:
    assert "digits_lora" in str(words("vtool train sft digits", shell))
    assert "optim.lr=" in str(words("vtool train sft digits optim.", shell))
    assert "VT401" in str(words("vtool explain VT4", shell))


def test_a_group_is_one_word_until_it_is_the_only_one() -> None:
    assert "optim." in words("vtool train sft digits ")
    assert "checkpoint.every_steps=" in words("vtool train sft digits chec")
    assert "subjects." not in words("vtool train sft digits ")
    assert not [word for word in words("vtool train sft digits data.") if "data.train." in word]


def test_the_only_setting_comes_with_its_values_so_that_no_shell_ends_the_word() -> None:
    found = words("vtool train sft digits optim.sch")
    assert found[0] == "optim.schedule="
    assert {"optim.schedule=cosine", "optim.schedule=wsd"} <= set(found)
    assert words("vtool validate-config digits optim.schedule=c", "fish") == [
        "optim.schedule=cosine",
        "optim.schedule=constant",
    ]
    assert words("vtool train sft digits engine=", "fish") == [
        f"engine={name}" for name in sorted(ENGINES)
    ]


def test_bash_which_breaks_words_at_the_sign_is_given_the_value_alone() -> None:
    assert words("vtool train sft digits optim.schedule = co") == ["cosine", "constant"]
    assert "wsd" in words("vtool train sft digits optim.schedule =")


def test_runs_are_completed_by_folder_and_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "lr-optim.lr=1", "lr-optim.lr=2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").touch()
    (tmp_path / "runs/notes").mkdir()
    (tmp_path / "rows.jsonl").touch()
    (tmp_path / "mine.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert "runs/one" in words("vtool report ")
    assert "runs/one" in words("vtool export runs/o")
    assert words("vtool report on") == words("vtool predict on") == ["one"]
    assert {"lr", "lr-optim.lr=1"} <= set(words("vtool report l"))
    assert words("vtool train sft mi") == ["mine.yaml"]
    assert words("vtool verify rows.") == ["rows.jsonl"]
    found = words("vtool report ru")
    assert found[0] == "runs/"
    assert "runs/one" in found  # a second word keeps the shell from ending the first


def test_metrics_of_an_evaluation_are_completed() -> None:
    assert words("vtool evaluate a rows --metric a") == ["accuracy", "anls"]


@pytest.mark.parametrize(
    "broken",
    [
        {"COMP_WORDS": "vtool explain VT4"},
        {"COMP_WORDS": "vtool explain VT4", "COMP_CWORD": "many"},
        {"COMP_WORDS": "vtool report \\udc80'\"", "COMP_CWORD": "2"},
        {"COMP_WORDS": "vtool report /root/\\0/", "COMP_CWORD": "2"},
    ],
)
def test_nothing_that_goes_wrong_is_printed_or_written(
    tmp_path: Path, broken: Mapping[str, str]
) -> None:
    environment = os.environ | HERE | {"_VTOOL_COMPLETE": "complete_bash", **broken}
    done = subprocess.run(
        [sys.executable, "-c", VTOOL],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr, list(tmp_path.iterdir())) == ("", "", [])


def test_words_that_cannot_be_read_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise OSError

    monkeypatch.setattr(complete, "_known", gone)
    assert words("vtool explain VT4") == []


def test_nothing_heavy_is_imported() -> None:
    """Milliseconds are in benchmarks/startup.py; this is what they are made of."""
    program = (
        f"import sys, atexit; heavy = ('rich.text', 'yaml', 'pydantic', 'torch', 'hydra',"
        " 'omegaconf', 'vtool.config.schema', 'vtool.config.resources');"
        "atexit.register(lambda: print([one for one in heavy if sys.modules.get(one)]));"
        f"{VTOOL}"
    )
    line = {"_TYPER_COMPLETE_ARGS": "vtool explain VT4", "_VTOOL_COMPLETE": "complete_zsh"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | HERE | line,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "VT401" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_real_shell_takes_the_words(shell: str, tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"not run: {shell} is not installed")
    program = tmp_path / "vtool"
    program.write_text(f"#!{sys.executable}\n{VTOOL}\n")
    program.chmod(0o755)
    environment = os.environ | HERE | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = CliRunner().invoke(
        app,
        [],
        env={"_VTOOL_COMPLETE": f"source_{shell}", "PATH": environment["PATH"]},
        prog_name="vtool",
    )
    asked = {
        "bash": (
            "COMP_WORDS=(vtool explain VT40); COMP_CWORD=2; _vtool_completion vtool;"
            ' printf "%s\\n" "${COMPREPLY[@]}"'
        ),
        "fish": 'complete -C "vtool explain VT40"',
    }[shell]
    done = subprocess.run(
        [shell, "-c", f"{script.stdout}\n{asked}"],
        env=environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()][:2] == ["VT401", "VT402"]
