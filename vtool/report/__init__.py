"""Pages made from a run's files, never from live objects.

Imports no torch, transformers, hydra or pydantic.
"""

from vtool.report.page import write_report

__all__ = ["write_report"]
