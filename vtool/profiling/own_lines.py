"""Standard error without the lines that torch's profiler writes there of itself."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile

import torch

_OWN = re.compile(
    rb"^USDT:.* profiler_st(?:art|op)\s*$"
    rb"|^(?:\[rank\d+\]:)?\[W.* CPUAllocator\.cpp.*unknown size"
)
"""Kineto's marks for tracers of the system, which no level of its log leaves out, and the advice
that memory of before the profile is freed, which is so in every training. Where there has been a
process group, torch writes the rank before it."""


@contextmanager
def without_own_lines() -> Iterator[None]:
    """Hold back what is written to standard error, by C++ too, and write it without such lines.

    The advice comes with the first such memory and with every thousandth: some is freed here.
    """
    sys.stderr.flush()
    before = torch.empty(1)
    kept = os.dup(2)
    try:
        with TemporaryFile() as held:
            os.dup2(held.fileno(), 2)
            try:
                yield
                del before
            finally:
                sys.stderr.flush()
                os.dup2(kept, 2)
                held.seek(0)
                for line in held:
                    if not _OWN.match(line):
                        os.write(2, line)
    finally:
        os.close(kept)
