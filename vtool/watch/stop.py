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
        self.stopped: float | None = None
        self.rule = ""
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
            self.rule, self.stopped = errors[0], time.time()
            interrupt(process)

    def checkpoint(self) -> str:
        """Say why the command was ended, and whether it has saved anything since."""
        assert self.stopped is not None
        saved = _newest(Path(), self.stopped)
        return f"ended after the watched steps by {self.rule}; " + (
            f"it saved {saved} then" if saved else "no checkpoint was seen below this folder since"
        )


def _newest(folder: Path, since: float) -> Path | None:
    found: list[tuple[float, Path]] = []
    for here, inner, _ in os.walk(folder):
        if len(Path(here).relative_to(folder).parts) >= _DEEPEST:
            inner.clear()
        for pattern in _CHECKPOINTS:
            for file in Path(here).glob(pattern):
                try:
                    found.append((file.stat().st_mtime, file))
                except OSError:
                    continue
    newest = max(found, default=(0.0, None))
    return newest[1] if newest[0] >= since else None
