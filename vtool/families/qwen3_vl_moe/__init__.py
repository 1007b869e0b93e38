"""Qwen3-VL with experts."""

from vtool.families.qwen3_vl_moe.facts import FACTS

__all__ = ["FACTS"]
