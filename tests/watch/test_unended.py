"""Facts that stop in the middle, by a full disk or a kill: reported, and no look is made up."""

import signal
from pathlib import Path

import pytest

from tests.commands import run_vtool
from tests.watch.forks import Forks
from tests.watch.inject.test_sitecustomize import TRAINS
from tests.watch.made import changed, healthy, write
from tests.watch.test_conclusions import PLANTED
from vtool.watch.conclude import conclude_folder
from vtool.watch.reading import read_facts
from vtool.watch.text import describe_results


def lines(folder: Path) -> list[str]:
    return list(describe_results(conclude_folder(folder, "run", None)))


def test_a_disk_that_fills_costs_one_line_and_the_page_says_that_there_is_no_end(
    tmp_path: Path, forks: Forks
) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
    done = forks.run_text(limit + TRAINS, facts=tmp_path / "facts")
    assert (done.returncode, done.stdout) == (0, forks.run_text(TRAINS).stdout)
    assert done.stderr.count("\n") == 1
    assert "facts are no longer written: OSError(27, 'File too large')" in done.stderr
    (file,) = (tmp_path / "facts").iterdir()
    assert file.stat().st_size == 6000
    assert "  the facts of 1 of 1 processes have no end" in "\n".join(lines(tmp_path / "facts"))


@pytest.mark.parametrize("text", ["", '{"kind": "proc'])
def test_an_empty_file_is_no_missing_pythonpath(tmp_path: Path, text: str) -> None:
    (tmp_path / "rank0-1.jsonl").write_text(text)
    (result,) = conclude_folder(tmp_path, "run", None)
    assert result.verdict == "not-run"
    assert "the facts are empty" in result.findings[0].message


def cut(folder: Path, step: int, damage: str = "") -> Path:
    """Write facts that stop within a step, or one line of which is something else."""
    facts = [f for f in healthy() if f["kind"] != "ended" and f["step"] <= step]
    (file,) = write(folder, facts[:-1] if not damage else healthy()).iterdir()
    if damage:
        lines = file.read_text().splitlines()
        file.write_text("\n".join([*lines[:3], damage, *lines[4:]]) + "\n")
    return folder


@pytest.mark.parametrize(
    ("step", "damage", "message"),
    [
        (0, "", "the facts stop within the 3 watched steps"),
        (1, "", "the facts stop within the 3 watched steps"),
        (2, "\0" * 40, "lines of the facts are damaged (1)"),
    ],
)
def test_facts_of_which_a_part_is_missing_are_no_pass(
    tmp_path: Path, step: int, damage: str, message: str
) -> None:
    done = run_vtool(tmp_path, "watch", "--read", str(cut(tmp_path / "facts", step, damage)))
    assert done.status == 2
    assert message in done.stdout
    assert "passed" not in done.stdout


def test_what_was_found_before_facts_stop_stands(tmp_path: Path) -> None:
    wrong = changed(healthy(), PLANTED["mean of means"][1])
    write(tmp_path / "facts", [f for f in wrong if f["kind"] != "ended" and f["step"] < 2])
    done = run_vtool(tmp_path, "watch", "--read", "facts")
    assert done.status == 1
    assert "token-weights-differ" in done.stdout


@pytest.mark.parametrize(
    ("name", "text", "rule", "message"),
    [
        (None, "", "not-a-folder-of-facts", "facts has no facts (rank*.jsonl)"),
        ("notes.txt", "text", "not-a-folder-of-facts", "facts has no facts (rank*.jsonl)"),
        ("rank0-1.jsonl", "\0\1\n\2\n", "nothing-read", "all of their lines (1) are damaged"),
        ("rank0-1.jsonl", "", "nothing-read", "the facts are empty"),
    ],
)
def test_a_folder_without_facts_is_no_pass(
    tmp_path: Path, name: str | None, text: str, rule: str, message: str
) -> None:
    (tmp_path / "facts").mkdir()
    if name:
        (tmp_path / "facts" / name).write_text(text)
    done = run_vtool(tmp_path, "watch", "--read", "facts")
    assert done.status == 2
    assert f"[{rule} VT" in done.output
    assert message in done.output


def test_a_killed_process_has_no_end_and_one_that_ended_has(tmp_path: Path, forks: Forks) -> None:
    kill = "\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    killed = forks.run_text(TRAINS + kill, facts=tmp_path / "facts")
    assert killed.returncode == -signal.SIGKILL
    assert read_facts(tmp_path / "facts").unended == 1
    assert "killed, a full disk, or still running" in "\n".join(lines(tmp_path / "facts"))
    forks.run_text(TRAINS, facts=tmp_path / "whole")
    assert read_facts(tmp_path / "whole").unended == 0
    assert "have no end" not in "\n".join(lines(tmp_path / "whole"))
