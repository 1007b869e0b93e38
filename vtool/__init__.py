"""vtool: fine-tune vision-language models and prove that nothing went silently wrong.

The functions below do what the commands do (docs/python.md). `import vtool` imports nothing heavy.
"""

from typing import Any

from vtool.api import (
    LoadCheckReport,
    TrainingResult,
    audit,
    compare,
    compare_models,
    load,
    load_check,
    train,
    verify,
)
from vtool.version import __version__

__all__ = [
    "Diagnostic",
    "Findings",
    "LoadCheckReport",
    "TrainingResult",
    "__version__",
    "audit",
    "compare",
    "compare_models",
    "load",
    "load_check",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import the two classes of findings when they are asked for."""
    if name in ("Diagnostic", "Findings"):
        import vtool.diagnostics

        return getattr(vtool.diagnostics, name)
    raise AttributeError(f"module 'vtool' has no attribute {name!r}")
