"""The page of `vtool load-check`: subjects by checks, and the findings about each."""

from vtool.report.load_check.page import write_load_check

__all__ = ["write_load_check"]
