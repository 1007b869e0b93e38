"""The registry of model families. Torch-free: the code of a family is imported on use."""

from collections.abc import Mapping
from types import MappingProxyType

from vtool.families import glm4v, qwen2_5_vl, qwen2_vl, qwen3_5, qwen3_vl, qwen3_vl_moe
from vtool.families.any_facts import any_facts, transformers_types
from vtool.families.facts import FamilyFacts

FAMILIES: Mapping[str, FamilyFacts] = MappingProxyType(
    {
        family.FACTS.name: family.FACTS
        for family in (qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5, glm4v)
    }
)
"""The facts of every family by its name, which is `model.family` and config.json's `model_type`."""


def family_facts(name: str) -> FamilyFacts:
    """Return the facts of a family; of another model type what transformers says of it."""
    return FAMILIES.get(name) or any_facts(name)


def can_train(kind: str | None) -> bool:
    """Return whether models of a `model_type` can be trained: transformers has a class for it."""
    return kind is not None and (kind in FAMILIES or kind in transformers_types())
