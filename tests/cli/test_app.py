"""The ends of the command line: exit statuses, and no traceback."""

import signal
import subprocess
import sys

import pytest

from vtool.cli.app import is_interrupt


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
