"""GLM-4V."""

from vtool.families.glm4v.facts import FACTS

__all__ = ["FACTS"]
