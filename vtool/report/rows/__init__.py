"""The page of `vtool verify --html`: the rows of each split, their lengths, and what is learnt."""

from vtool.report.rows.page import write_rows

__all__ = ["write_rows"]
