"""Qwen2.5-VL."""

from vtool.families.qwen2_5_vl.facts import FACTS

__all__ = ["FACTS"]
