"""Makes small the sizes that a module of models writes down in its code."""

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from .shrink import shrink

T = TypeVar("T")


def shrink_constants(module: ModuleType) -> None:
    """Shrink the configs that a module of models writes down, for a component of fixed size."""
    from transformers import PretrainedConfig

    for value in vars(module).values():
        if isinstance(value, PretrainedConfig):
            shrink(value)


def set_constants(constants: Mapping[str, Mapping[str, Any]]) -> None:
    """Give functions other arguments than the sizes that a module of models writes down.

    Args:
        constants: the arguments by `module:function`.
    """
    for place, given in constants.items():
        name, _, function = place.partition(":")
        module = importlib.import_module(name)
        original = getattr(module, function)
        setattr(module, function, _with_arguments(original, given))


def _with_arguments(function: Callable[..., T], given: Mapping[str, Any]) -> Callable[..., T]:
    return lambda *args, **kwargs: function(*args, **{**kwargs, **given})
