"""Processes that we start, and that end when we do."""

import os
import sys
from collections.abc import Sequence

_STARTER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Has the kernel end a process when its parent goes, however that ends, and becomes it."""


def ends_with_us(command: Sequence[str]) -> list[str]:
    """Return a command that starts another one, which gets SIGTERM when this process ends."""
    return [sys.executable, "-c", _STARTER, str(os.getpid()), *command]
