"""The page of an evaluation, made from the files of its folder alone."""

from vtool.report.evaluation.page import is_evaluation, write_evaluation

__all__ = ["is_evaluation", "write_evaluation"]
