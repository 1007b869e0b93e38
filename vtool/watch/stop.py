"""`--stop-on error`: the end of a command whose watched steps show an error."""

import os
import subprocess
import time
from pathlib import Path

from vtool.watch.command import interrupt
from vtool.watch.conclude import conclude
from vtool.watch.reading import read_facts

_CHECKPOINTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.distcp")
_DEEPEST = 5


class Stopper:
    """Looks at the facts while the command runs, and ends it once."""

    def __init__(self, folder: Path, steps: int, tokenizer: Path | None) -> None:
        self.folder, self.steps, self.tokenizer = folder, steps, tokenizer
        self.rule = ""  # the error that ended the command; empty as long as none did
        self.before: dict[Path, tuple[int, int]] = {}
        self._concluded = False
        self._next, self._wait = 0.0, 0.5

    def look(self, process: "subprocess.Popen[bytes]") -> None:
        """Conclude once all watched steps are read, and interrupt the command for an error."""
        if self._concluded or time.monotonic() < self._next:
            return
        self._wait = min(60.0, 1.2 * self._wait)  # a run that is never read has ever more to read
        self._next = time.monotonic() + self._wait
        watched = read_facts(self.folder)
        if not watched.all_read(self.steps):
            return
        self._concluded = True
        errors = [
            finding.rule
            for result in conclude(watched, "", self.tokenizer)
            for finding in result.findings
            if finding.severity == "error"
        ]
        if errors:
            self.rule, self.before = errors[0], _checkpoints(Path())
            interrupt(process)

    def checkpoint(self) -> str:
        """Say why the command was ended, and whether it has saved anything since."""
        assert self.rule
        now = _checkpoints(Path())
        # Compared with the files before, not with the time of the interrupt: a file system's clock
        # is some milliseconds late, a network one may be minutes off.
        new = [file for file, stamp in now.items() if self.before.get(file) != stamp]
        saved = max(new, key=lambda file: now[file], default=None)
        return f"ended after the watched steps by {self.rule}; " + (
            f"it saved {saved} then" if saved else "no checkpoint was seen below this folder since"
        )


def _checkpoints(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the modification time in nanoseconds and the bytes of each checkpoint file below."""
    found: dict[Path, tuple[int, int]] = {}
    for here, inner, _ in os.walk(folder):
        if len(Path(here).relative_to(folder).parts) >= _DEEPEST:
            inner.clear()
        for pattern in _CHECKPOINTS:
            for file in Path(here).glob(pattern):
                try:
                    status = file.stat()
                except OSError:
                    continue
                found[file] = status.st_mtime_ns, status.st_size
    return found
