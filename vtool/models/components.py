"""The components of a model, and how many parameters each has."""

from typing import Any

from torch import nn

from vtool.families.family import Family
from vtool.models.nf4 import numbers_of

_COMPONENTS = ("vision", "projector", "language", "head")
"""The head is the layer that gives the logits. One that shares the embeddings' has none itself."""


def count_components(model: nn.Module, family: Family) -> dict[str, dict[str, int]]:
    """Return the parameters of each component, and how many are trained; adapters included.

    Args:
        model: whole, as an engine is given it.
        family: says which parameter is of which component.
    """
    bare: Any = model
    head, embeddings = bare.get_output_embeddings(), bare.get_input_embeddings()
    of_head = {id(each) for each in head.parameters()} if head is not None else set()
    of_head -= {id(each) for each in embeddings.parameters()}
    numbers = numbers_of(model)
    counts = {component: {"parameters": 0, "trained": 0} for component in _COMPONENTS}
    for name, parameter in model.named_parameters():
        component = "head" if id(parameter) in of_head else family.component(name)
        counts[component]["parameters"] += numbers[parameter]
        counts[component]["trained"] += parameter.numel() * parameter.requires_grad
    return counts
