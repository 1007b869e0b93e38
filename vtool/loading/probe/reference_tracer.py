"""Finds the line that keeps a tensor after the next one has been asked for."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from .sources import OwnedSource
from .subject import NamedTensor

GENERATOR = 0x20
_PROBE = os.path.dirname(__file__)
SourceLine = tuple[str, int]


class ReferenceTracer(OwnedSource):
    """Gives tensors as `OwnedSource` does, and finds the last line that still refers to each.

    A reference is one to the tensor, or a view of its memory. `trace` must be set with
    `sys.settrace` while tensors are loaded; then `lines` has the file and line for each name.

    Args:
        wanted: the names of the tensors to follow.
        code: beginnings of the paths of code to follow.
        home: the class's own file, whose lines come before others.
    """

    def __init__(
        self,
        checkpoint: Mapping[str, Tensor],
        wanted: set[str],
        code: Sequence[str],
        home: str | None,
    ) -> None:
        super().__init__(checkpoint)
        self.wanted = wanted
        self.code = tuple(code)
        self.home = home
        self.lines: dict[str, SourceLine] = {}
        self._tensor: Tensor | None = None
        self._rises: list[tuple[int, SourceLine]] = []
        self._count = 0
        self._calls: set[SourceLine] = set()
        """Lines that called a function with the tensor, whose references end with the call."""
        self._base = 0
        """References at the first line that was seen: those of the loader and of the loop."""

    def __iter__(self) -> Iterator[NamedTensor]:
        for name in self.names:
            tensor = self.checkpoint[name].clone()
            self._tensor = tensor if name in self.wanted else None
            self._rises, self._count, self._base = [], 0, 0
            self._calls = set()
            yield name, tensor
            if self._tensor is not None:
                self._count_references()
                rises = [line for _, line in self._rises]
                standing = [line for line in rises if line[0] == self.home] or rises
                if line := (standing[-1] if standing else self._asking_line()):
                    self.lines[name] = line
        self.exhausted = True

    def _count_references(self) -> int:
        """Return the references to the tensor, and forget the lines of those that have gone."""
        assert self._tensor is not None
        count = sys.getrefcount(self._tensor) + torch._C._storage_Use_Count(
            self._tensor.untyped_storage()._cdata
        )
        highest: SourceLine | None = None
        while self._rises and self._rises[-1][0] > count:
            _, line = self._rises.pop()
            highest = highest or line
        # A function that was called has returned: its arguments have gone, and a reference that it
        # made is still there.
        level, below = self._rises[-1] if self._rises else (self._base, None)
        if highest and (count > level or below in self._calls):
            if below in self._calls:
                self._rises.pop()
                self._calls.add(highest)
            self._rises.append((count, highest))
        return count

    def _follows(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        return file.startswith(self.code) and not file.startswith(_PROBE)

    def _asking_line(self) -> SourceLine | None:
        """Return the line that asks for the next tensor, in the innermost plain function.

        Generators that pass tensors on count only where nothing else asks.
        """
        frame: FrameType | None = sys._getframe(2)
        passed: SourceLine | None = None
        while frame is not None:
            if self._follows(frame):
                line = (frame.f_code.co_filename, frame.f_lineno)
                if not frame.f_code.co_flags & GENERATOR:
                    return line
                passed = passed or line
            frame = frame.f_back
        return passed

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """Follow the lines of the class's own code, and of its framework's, for `sys.settrace`."""
        if not self._follows(frame):
            return None
        # What is seen at a function's first line has happened at the line that called it.
        caller = frame.f_back if frame.f_back is not None and self._follows(frame.f_back) else frame
        last: SourceLine = (caller.f_code.co_filename, caller.f_lineno)

        first = True

        def local(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal last, first
            if self._tensor is not None:
                count = self._count_references()
                self._base = self._base or count
                # what is returned is held by the line that called
                if (
                    self._count
                    and count > self._count
                    and not (event == "return" and argument is not None)
                ):
                    self._rises.append((count, last))
                    if first and caller is not frame:
                        self._calls.add(last)
                self._count = count
            first = False
            last = (frame.f_code.co_filename, frame.f_lineno)
            return local

        return local
