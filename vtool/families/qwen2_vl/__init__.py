"""Qwen2-VL."""

from vtool.families.qwen2_vl.facts import FACTS

__all__ = ["FACTS"]
