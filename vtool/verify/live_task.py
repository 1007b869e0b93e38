"""What `--live` hands to its processes, and what it gets back.

Torch-free, as the command is that asks.
"""

from dataclasses import dataclass

from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic
from vtool.verify.shrink_run import StandIn


@dataclass(frozen=True, slots=True)
class Task:
    """What each process is given."""

    run: Run
    """As the recipe says."""
    small: StandIn
    origins: Origins


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """What a process has found."""

    findings: tuple[Diagnostic, ...] = ()
    read: frozenset[str] = frozenset()
    """Settings that were held against something."""
    unseen: frozenset[str] = frozenset()
    """Names of which something is asked and nothing was seen."""
