"""The page of `vtool watch`: what was learnt, token by token, and what was found."""

from vtool.report.watch.page import write_watch

__all__ = ["write_watch"]
