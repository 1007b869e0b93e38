"""A model's tensors: marked before a load, copied after it, and compared."""

import sys
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from .facts import ValueDifference

MARKS = (0x4B, 0x5A)
"""The bytes that parameters are filled with before the first and the second load.

As bfloat16 and float32 they are large finite numbers.
"""

NamedState = dict[str, Tensor]


def named_tensors(model: Any) -> NamedState:
    """Return parameters and buffers, a shared one under each of its names."""
    return named_parameters(model) | _all(model, "named_buffers")


def named_parameters(model: Any) -> NamedState:
    """Return parameters, a shared one under each of its names."""
    return _all(model, "named_parameters")


def _all(model: Any, method: str) -> NamedState:
    if not hasattr(model, method):
        return {}
    try:
        pairs = getattr(model, method)(remove_duplicate=False)
    except TypeError:
        pairs = getattr(model, method)()
    return {
        name: tensor
        for name, tensor in pairs
        if isinstance(tensor, Tensor) and tensor.device.type != "meta"
    }


def held_tensors(model: Any) -> NamedState:
    """Return parameters, buffers, and what modules keep besides them: attributes and dicts.

    Not lists: the place of a tensor in one may say when it came.
    """
    found = named_tensors(model)
    known = {id(tensor) for tensor in found.values()}
    modules = model.named_modules() if hasattr(model, "named_modules") else [("", model)]
    for name, module in modules:
        for attribute, value in getattr(module, "__dict__", {}).items():
            if attribute in ("_parameters", "_buffers", "_modules"):
                continue
            path = f"{name}.{attribute}" if name else attribute
            pairs = value.items() if isinstance(value, dict) else [(None, value)]
            for key, tensor in list(pairs):
                if (
                    isinstance(tensor, Tensor)
                    and tensor.layout == torch.strided
                    and tensor.device.type != "meta"
                    and id(tensor) not in known
                ):
                    found[path if key is None else f"{path}[{key!r}]"] = tensor
    return found


def fill_with_byte(model: Any, byte: int, buffers: Collection[str] = ()) -> None:
    """Fill every parameter, and the buffers that are named, with one byte.

    Other buffers are left alone: what a constructor computes would not be computed again. A name
    that the model lacks is of a buffer that a load makes.
    """
    if hasattr(model, "mark_with"):
        model.mark_with(byte)
    there = named_tensors(model)
    with torch.no_grad():
        for tensor in (
            named_parameters(model) | {name: there[name] for name in buffers if name in there}
        ).values():
            tensor.untyped_storage().fill_(byte)  # type: ignore[attr-defined]


def copy_state(model: Any, held: bool = False) -> NamedState:
    """Return a copy of every parameter and buffer; with `held`, as `held_tensors` finds them."""
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in (held_tensors if held else named_tensors)(model).items()
    }


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes, of shape (elements, bytes of one)."""
    return (
        tensor.detach()
        .contiguous()
        .reshape(-1)
        .view(torch.uint8)
        .view(tensor.numel(), tensor.element_size())
    )


def as_words(tensor: Tensor) -> Tensor:
    """Return the bits of each element as an integer.

    The shape is (elements,), or (elements, 2) for complex128.
    """
    words = tensor.detach().contiguous().reshape(-1).view(_WORDS[min(tensor.element_size(), 8)])
    return words if words.numel() == tensor.numel() else words.view(tensor.numel(), -1)


_WITH_NAN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def differing_elements(left: Tensor, right: Tensor) -> Tensor:
    """Return a mask of the elements that differ in any bit, of shape (elements,)."""
    unlike = as_words(left) != as_words(right)
    return unlike.any(-1) if unlike.dim() > 1 else unlike


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Return True if two tensors of one shape and dtype are the same in every bit.

    One pass over memory, after which most comparisons are done.
    """
    return torch.equal(as_words(left), as_words(right))


def marked(tensor: Tensor, byte: int) -> Tensor:
    """Return a mask of the elements that still have the byte they were filled with."""
    words = as_words(tensor)
    alike = words == int.from_bytes(
        bytes([byte]) * words.element_size(), sys.byteorder, signed=words.dtype.is_signed
    )
    return alike.all(-1) if alike.dim() > 1 else alike


def compare_states(
    expected: Mapping[str, Tensor],
    observed: Mapping[str, Tensor],
    skip: Mapping[str, Tensor] | None = None,
) -> dict[str, ValueDifference]:
    """Return every tensor that differs, and how.

    Args:
        skip: for a name, a mask of the elements that are not compared: no load has written them.
    """
    found: dict[str, ValueDifference] = {}
    for name in dict.fromkeys((*expected, *observed)):
        if name not in expected or name not in observed:
            here, there = (
                "there" if name in state else "not there" for state in (expected, observed)
            )
            found[name] = ValueDifference(here, there)
            continue
        left, right = expected[name], observed[name]
        if left.shape != right.shape or left.dtype != right.dtype:
            found[name] = ValueDifference(_kind(left), _kind(right))
            continue
        if same_bits(left, right):
            continue
        differs = differing_elements(left, right)
        if left.dtype in _WITH_NAN:  # one NaN is as good as another, whatever its bits
            differs &= ~(left.isnan() & right.isnan()).reshape(-1)
        if skip and name in skip:
            differs &= ~skip[name]
        if count := int(differs.count_nonzero()):
            first = int(differs.nonzero()[0])
            found[name] = ValueDifference(
                f"{_value(left, first)} at element {first}",
                f"{_value(right, first)}; {count} of {left.numel()} elements differ",
            )
    return found


def _value(tensor: Tensor, index: int) -> str:
    value = tensor.reshape(-1)[index]
    return f"{value.float().item():.6g}" if value.is_floating_point() else str(value.item())


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
