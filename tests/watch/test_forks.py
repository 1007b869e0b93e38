"""The process that trainings are forked from: what is in a fork, and how it ends."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.watch.forks import Forks

SEEN = "import sys; print(sorted(name for name in sys.modules if 'vtool_watch' in name)[:1])"


@pytest.fixture(scope="module")
def light() -> Iterator[Forks]:
    """Fork programs without torch."""
    with Forks() as made:
        yield made


@pytest.mark.full
def test_the_watch_is_in_forks_with_facts_alone(tmp_path: Path, forks: Forks) -> None:
    assert forks.run_text(SEEN, facts=tmp_path).stdout == "['vtool_watch']\n"
    assert forks.run_text(SEEN).stdout == "[]\n"
    path = forks.run_text("import sys; print(*sys.path)").stdout
    assert "watch/inject" not in path


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('no')", 1),
        ("1 / 0", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_a_fork_ends_as_its_program_does(light: Forks, program: str, status: int) -> None:
    done = light.run_text("print('began', flush=True)\n" + program)
    assert (done.returncode, done.stdout) == (status, "began\n")
    assert ("ZeroDivisionError" in done.stderr) == ("1 / 0" in program)
    assert (done.stderr == "no\n") == ("no" in program)


def test_what_a_fork_does_at_its_exit_is_done(light: Forks) -> None:
    done = light.run_text("import atexit; atexit.register(print, 'last'); print('first')")
    assert done.stdout == "first\nlast\n"


def test_a_process_that_is_gone_is_started_again(light: Forks) -> None:
    with pytest.raises(AssertionError, match="has ended"):
        light.run_text("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    assert light.run_text("print('again')").stdout == "again\n"


def test_a_module_that_is_not_there_is_said() -> None:
    with Forks("no_such_module") as none, pytest.raises(AssertionError, match="has ended"):
        none.run_text("pass")
