"""Qwen3-VL."""

from vtool.families.qwen3_vl.facts import FACTS

__all__ = ["FACTS"]
