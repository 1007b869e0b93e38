"""Facts that stop in the middle, by a full disk or a kill: it is said, and no look is made up."""

import signal
from pathlib import Path

import pytest

from tests.watch.forks import Forks
from tests.watch.inject.test_sitecustomize import TRAINS
from vtool.watch.conclude import conclude_folder
from vtool.watch.reading import read_facts
from vtool.watch.text import describe


def lines(folder: Path) -> list[str]:
    return list(describe(conclude_folder(folder, "run", None)))


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
    assert "the facts of 1 processes are empty" in result.findings[0].message


def test_a_killed_process_has_no_end_and_one_that_ended_has(tmp_path: Path, forks: Forks) -> None:
    kill = "\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    killed = forks.run_text(TRAINS + kill, facts=tmp_path / "facts")
    assert killed.returncode == -signal.SIGKILL
    assert read_facts(tmp_path / "facts").unended == 1
    assert "killed, a full disk, or still running" in "\n".join(lines(tmp_path / "facts"))
    forks.run_text(TRAINS, facts=tmp_path / "whole")
    assert read_facts(tmp_path / "whole").unended == 0
    assert "have no end" not in "\n".join(lines(tmp_path / "whole"))
