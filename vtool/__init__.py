"""vtool: fine-tune vision-language models and prove that nothing went silently wrong.

The functions below do what the commands do (docs/python.md). `import vtool` imports nothing heavy.
"""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from vtool.config.load import Loaded
    from vtool.data.audit import Ledger
    from vtool.diagnostics import Diagnostic, Findings
    from vtool.diagnostics.result import Result
    from vtool.verification.proofs.report import ProofReport

__all__ = [
    "Diagnostic",
    "Findings",
    "Ledger",
    "LoadCheckReport",
    "Loaded",
    "ProofReport",
    "Result",
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


_IMPORTED_LATE = {
    "Diagnostic": "vtool.diagnostics",
    "Findings": "vtool.diagnostics",
    "Ledger": "vtool.data.audit",
    "Loaded": "vtool.config.load",
    "ProofReport": "vtool.verification.proofs.report",
    "Result": "vtool.diagnostics.result",
}
"""The modules of classes that are imported when they are asked for."""


def __getattr__(name: str) -> Any:
    """Import a class of what the functions return or raise."""
    if name not in _IMPORTED_LATE:
        raise AttributeError(f"module 'vtool' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_IMPORTED_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
