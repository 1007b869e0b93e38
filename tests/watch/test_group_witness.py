"""Whether a signal was sent to our process group or to us alone, also on a busy machine."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PASS_ON = """
import os, signal, sys, threading
{before}
from vtool.watch.command import run_command
came = []
count = "import pathlib, signal, sys, time; came = []\\n" \\
    "signal.signal(signal.SIGTERM, lambda *_: came.append(1))\\n" \\
    "pathlib.Path('ready').touch(); time.sleep(1.5); sys.exit(40 + len(came))"

def send():
    while not os.path.exists('ready'):
        pass
    {send}

threading.Thread(target=send, daemon=True).start()
code = run_command(sys.executable, [sys.executable, "-c", count], os.environ, note=came.append)
print(code, came)
"""


@pytest.mark.parametrize(
    ("before", "send", "printed"),
    [
        # the kernel gives it to a thread that has not blocked it
        ("", "os.kill(os.getpid(), signal.SIGTERM)", "41 [15]"),
        ("", "os.killpg(0, signal.SIGTERM)", "41 [15]"),
        ("", "pass", "40 []"),
        # as under nohup: the command ignores it too
        ("signal.signal(signal.SIGHUP, signal.SIG_IGN)", "os.killpg(0, signal.SIGHUP)", "40 [1]"),
    ],
    ids=["to it alone", "to the group", "none", "ignored"],
)
def test_a_command_of_a_process_with_threads_gets_a_signal_once(
    tmp_path: Path, before: str, send: str, printed: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PASS_ON.format(before=before, send=send)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert done.stdout.strip() == printed, done.stderr


def test_a_witness_that_has_not_run_yet_is_asked_what_it_was_sent(tmp_path: Path) -> None:
    script = """
import os, signal
from vtool.watch.group_witness import GroupWitness
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
with GroupWitness({signal.SIGTERM, signal.SIGINT}) as witness:
    os.kill(witness._pid, signal.SIGSTOP)
    os.killpg(0, signal.SIGTERM)
    print(witness.has(signal.SIGTERM), witness.has(signal.SIGINT))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert done.stdout == "True False\n", done.stderr
    assert done.returncode in (0, -signal.SIGTERM)
