"""How the command line ends."""

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
