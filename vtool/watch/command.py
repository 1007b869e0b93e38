"""The command that is watched: where it is, which Python runs it, and how it ended."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vtool.contents import open_regular
from vtool.watch.group_witness import GroupWitness

PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
"""Signals that the command gets instead of us."""
_FROM_KERNEL = 0x80
"""`si_code` of a signal of the terminal: the command, of our own process group, has it already."""
_LOOK_SECONDS = 0.5
_ISOLATING = re.compile(r"-[a-zA-VYZ]*[IES][a-zA-Z]*")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, as its folder describes it: nothing is run to find out."""

    file: str
    version: str | None
    torch: str | None

    def __str__(self) -> str:
        torch = f"torch {self.torch}" if self.torch else "no torch beside it"
        return f"Python{' ' + self.version if self.version else ''} of {self.file}, {torch}"


class NotRunnableError(ValueError):
    """A file that is there, and is no program."""


def find_command(name: str, path: str | None = None) -> str:
    """Return the file that the user's shell would run.

    Raises:
        NotRunnableError: it is there, and cannot be run.
        ValueError: there is none.
    """
    found = shutil.which(name, path=path)
    if found:
        return found
    if os.path.isfile(name) and (os.sep in name or name.endswith(".py")):
        how = f"python {name}" if name.endswith(".py") else "chmod +x"
        raise NotRunnableError(f"the command {name} cannot be run ({how}); nothing was started")
    if os.sep in name and os.path.isdir(name):
        raise NotRunnableError(f"{name} is a folder, and no command; nothing was started")
    if os.sep in name:
        raise ValueError(f"the command {name} is not there; nothing was started")
    raise ValueError(
        f"there is no command {name} on the PATH; nothing was started (is the trainer's environment"
        " active? its full path works too)"
    )


def find_interpreter(file: str) -> Interpreter | None:
    """Return the Python that runs a file, itself or by its first line; None for anything else."""
    is_python = re.fullmatch(r"python[\d.]*", Path(file).name)
    if is_python and _is_script(file):  # a shim, as pyenv's: which Python it starts is not seen
        return None
    python = file if is_python else _shebang(file)
    if python is None:
        return None
    version = torch = None
    prefix = Path(python).parent.parent  # not resolved: a venv's python is a link out of it
    for folder in sorted(prefix.glob("lib/python3*/site-packages")):
        version = folder.parent.name.removeprefix("python")
        for metadata in sorted(folder.glob("torch-*.dist-info")):
            torch = metadata.name.removeprefix("torch-").removesuffix(".dist-info")
        if torch:
            break
    return Interpreter(python, version, torch)


def _is_script(file: str) -> bool:
    try:
        with open_regular(file) as script:
            return script.read(2) == b"#!"
    except OSError:
        return False


def _shebang(file: str) -> str | None:
    try:
        with open_regular(file) as script:
            first = script.readline(500).decode("utf-8", "replace").strip()
            second = script.readline(500).decode("utf-8", "replace") if "sh" in first else ""
    except OSError:
        return None
    # pip writes `#!/bin/sh` and `'''exec' "…/python" …` where the path is long or has a space
    if found := re.match(r"'''exec' \"?([^\"]+/python[\d.]*)\"?", second):
        return found[1]
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        words[:1] = [shutil.which(words[0]) or words[0]] if words else []
    if not words or not re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        return None
    return words[0]


def isolated(command: Sequence[str]) -> str | None:
    """Return the option, such as -I, with which a Python does not see what is on PYTHONPATH."""
    if not re.fullmatch(r"python[\d.]*", Path(command[0]).name):
        return None
    for word in command[1:]:
        if not word.startswith("-") or word in ("-c", "-m", "-"):
            return None
        if _ISOLATING.fullmatch(word):
            return word
    return None


def run_command(
    file: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    look: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> int:
    """Run a command in our place, and return its exit status as a shell would.

    Its input, output and errors are ours. Signals that we alone are sent are passed on; those of
    the terminal, and of the whole process group, reach it by themselves. A command that a signal
    ended has the status 128 + its number.

    Args:
        file: what is run; its own name is the command's first word, as in a shell.
        look: called now and then, and each time that a signal comes.

    Raises:
        OSError: it could not be started.
    """
    waited = PASSED_ON | {signal.SIGCHLD}
    handler = signal.signal(signal.SIGCHLD, _nothing)  # an ignored signal would not be waited for
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        process = subprocess.Popen(
            list(command),
            executable=file,
            env=dict(environment),
            close_fds=False,  # it may have been given some: `-- python train.py <(make-config)`
            # not ours to keep: the command begins with the signals that we began with
            preexec_fn=lambda: _restore(mask),  # noqa: PLW1509 (this process has one thread)
        )
        # after the command: a signal to the group that comes before both is passed on
        with GroupWitness(PASSED_ON) as group:
            while process.poll() is None:
                came = signal.sigtimedwait(waited, _LOOK_SECONDS)
                if came and came.si_signo in PASSED_ON:
                    if sent_to_group := group.has(came.si_signo):
                        # `timeout` sends it to us alone too, a moment before: that is the same one
                        signal.sigtimedwait({came.si_signo}, 0)
                    # a terminal that hangs up: the kernel sends SIGHUP to the leader of its session
                    by_terminal = came.si_code == _FROM_KERNEL and came.si_signo != signal.SIGHUP
                    if not sent_to_group and not by_terminal:
                        process.send_signal(came.si_signo)
                if look:
                    look(process)
    finally:
        # A signal after its end is the terminal's, and was for the command: it is not ours.
        while signal.sigtimedwait(waited, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, handler)
    status = process.returncode
    return 128 - status if status < 0 else status


def _restore(mask: "set[int | signal.Signals]") -> None:
    for number in PASSED_ON:  # one that has come already would run a handler of ours
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _nothing(*_: object) -> None:
    """Take a signal for which `sigtimedwait` waits."""


def interrupt(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGINT to a command and to all that it has started, as Ctrl-C in a terminal does."""
    for pid in (process.pid, *_descendants(process.pid)):
        try:
            os.kill(pid, signal.SIGINT)
        except ProcessLookupError:
            continue


def _descendants(pid: int) -> list[int]:
    """Return the children of a process, theirs, and so on, within its process group."""
    parents: dict[int, list[int]] = {}
    group = os.getpgid(pid)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found
