"""The ends of the command line: exit statuses, and no traceback."""

import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from vtool.cli.app import app, is_interrupt


def _replace_an_interrupt() -> None:
    """Be OmegaConf, whose clean-up met an object that was half made."""
    try:
        raise KeyboardInterrupt
    finally:
        None._invalidate_flags_cache()  # type: ignore[attr-defined]


def test_a_ctrl_c_that_a_library_turned_into_its_own_error_is_still_one() -> None:
    with pytest.raises(AttributeError) as raised:
        _replace_an_interrupt()
    assert is_interrupt(raised.value)
    assert is_interrupt(KeyboardInterrupt())
    assert not is_interrupt(AttributeError())


def test_a_ctrl_c_after_the_command_ends_the_process_without_a_traceback() -> None:
    late = (
        "import atexit, os, signal, sys, time;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        "atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(5)));"
        "sys.argv = ['vtool', '--version'];"
        "from vtool.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stdout.startswith("vtool ")
    assert "Traceback" not in done.stderr


def test_a_ctrl_c_that_code_in_c_has_replaced_by_its_own_error_is_no_traceback() -> None:
    """Safetensors' error is one, which leaves neither `__cause__` nor `__context__`."""
    replaced = (
        "import os, signal, sys;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import vtool.cli.app as cli\n"
        "def app(obj):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        while True: pass\n"
        "    except KeyboardInterrupt:\n"
        "        error = ValueError('could not determine the shape')\n"
        "    raise error\n"
        "cli.app = app\n"
        "cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", replaced], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "stopped\n")


HELP = {
    "train": "Train a model, or resume a run that was stopped.",
    "verify": "Audit rows, and prove a recipe's numbers in seconds.",
    "watch": "Show what any trainer teaches, read from its gradients.",
    "load-check": "Check that every weight lands, whatever loads it.",
}


def in_a_narrow_terminal(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"}, prog_name="vtool")
    return done.output


def test_the_help_shows_every_summary_whole_in_the_order_of_use() -> None:
    listed = in_a_narrow_terminal("--help").partition("Commands:\n")[2].splitlines()
    assert len(listed) == 15
    assert [line.split(maxsplit=1) for line in listed[:4]] == [[*one] for one in HELP.items()]
    assert [line for line in listed if line.endswith("...") or not line.endswith(".")] == []
    assert max(map(len, listed)) <= 80


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        (["train", "sft"], "vtool train sft [OPTIONS] {RECIPE|ROWS} [KEY=VALUE]..."),
        (["validate-config"], "vtool validate-config [OPTIONS] RECIPE… [KEY=VALUE]…"),
        (["load-check"], "vtool load-check [OPTIONS] SUBJECT… [KEY=VALUE]…"),
        (["report"], "vtool report [OPTIONS] RUN…"),
        (["watch"], "vtool watch [OPTIONS] -- COMMAND…"),
        (["plan"], "vtool plan [OPTIONS] {RECIPE|ROWS} [KEY=VALUE]..."),
    ],
)
def test_a_usage_has_no_doubled_ellipsis(command: list[str], usage: str) -> None:
    assert in_a_narrow_terminal(*command, "--help").splitlines()[0] == f"Usage: {usage}"


@pytest.mark.parametrize("command", [*HELP, "train sft"])
def test_a_help_says_what_to_write_and_no_type_of_pythons(command: str) -> None:
    said = in_a_narrow_terminal(*command.split(), "--help")
    assert not re.search(r"<(list|str|int|float|path)\b|\brange>|Path\b", said)


@pytest.mark.parametrize(
    ("option", "setting"),
    [("--epochs", ": train.epochs=…"), ("--learning-rate", ": optim.lr=…"), ("--zzz", "")],
)
def test_an_option_of_another_trainer_is_answered_with_the_setting(
    option: str, setting: str
) -> None:
    said = in_a_narrow_terminal("train", "sft", "digits", option, "3")
    assert said.splitlines()[-1].endswith(f"{option}; settings are KEY=VALUE{setting}")


def test_another_kind_of_training_is_no_command() -> None:
    assert "supervised fine-tuning alone is built" in in_a_narrow_terminal("train", "dpo", "digits")


@pytest.mark.parametrize(
    "place",
    [
        "os.register_at_fork(before=hit); os.fork() or os._exit(0)",
        "weakref.finalize(Kept(), hit)",
    ],
)
def test_a_ctrl_c_where_python_drops_what_is_raised_still_ends_the_command(place: str) -> None:
    """A hook of `os.fork`, as logging's, or a finalizer: "Exception ignored in", and nothing."""
    lost = (
        "import os, signal, sys, time, weakref\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import vtool.cli.app as cli\n"
        "class Kept: pass\n"
        "def hit():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "def app(obj):\n"
        f"    {place}\n"
        "    time.sleep(20)\n"
        "cli.app = app\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", lost], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "stopped\n")


def test_what_an_object_that_a_ctrl_c_left_half_made_raises_at_its_end_is_not_shown() -> None:
    """torch's DataLoader is one while it starts its workers."""
    script = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import vtool.cli.app as cli\n"
        "class HalfMade:\n"
        "    def __init__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        self.workers = []\n"
        "    def __del__(self):\n"
        "        self.workers.clear()\n"
        "cli.app = lambda obj: HalfMade()\n"
        "cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "stopped\n")


@pytest.mark.parametrize(
    ("raised", "shown"),
    [("RuntimeError('DataLoader worker (pid 1) is killed')", False), ("ValueError(1)", True)],
)
def test_a_worker_that_is_lost_at_the_end_is_not_shown_where_python_drops_it(
    raised: str, shown: bool
) -> None:
    script = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import vtool.cli.app as cli\n"
        "class Loader:\n"
        "    def __del__(self):\n"
        f"        raise {raised}\n"
        "def app(obj):\n"
        "    Loader()\n"
        "    raise SystemExit(0)\n"
        "cli.app = app\n"
        "cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert ("Exception ignored" in done.stderr) == shown
