"""Qwen3.5."""

from vtool.families.qwen3_5.facts import FACTS

__all__ = ["FACTS"]
