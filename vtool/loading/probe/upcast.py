"""float8 weights in blocks that a class makes plain numbers of while it loads them.

DeepSeek's checkpoints have `X.weight` in float8 and `X.weight_scale_inv`, a factor for each block.
A class whose parameter is plain waits for both, and so keeps one: which no other load reaches.
"""

import inspect
import re
import sys
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .formats import DEFAULT, WEIGHT_FORMATS
from .reference import ReferenceTensors, load_new
from .sources import OwnedSource
from .state import named_parameters
from .subject import Subject
from .threads import threads_in_order

SCALE = "weight_scale_inv"
_BLOCK = 128
_MODELS = ".models."
"""Part of the names of the modules whose text is read."""
CLOSE = 2**-6
"""Relative: two roundings to bfloat16, and a margin."""


def upcast_twin(reference: ReferenceTensors) -> Subject | None:
    """Return the subject with those weights in float8 that its class makes plain numbers of.

    None where the class's own file has nothing of such scales, or takes none of them.
    """
    subject = reference.subject
    if not _own_file_has(subject, SCALE):
        return None
    plain = subject.checkpoint
    by_kind: dict[str, list[str]] = {}
    for name, tensor in plain.items():
        if name.endswith(".weight") and tensor.dim() == 2 and tensor.dtype == torch.bfloat16:
            by_kind.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    taken = [name for names in by_kind.values() if _takes(reference, names) for name in names]
    if not taken:
        return None
    checkpoint, _ = _in_blocks(plain, set(taken))
    return Subject(
        subject.make,
        checkpoint,
        subject.load,
        subject.origin,
        code=subject.code,
        about=subject.about,
        paths=subject.paths,
    )


def asked_formats(subject: Subject, named: Sequence[str]) -> list[str]:
    """Return the formats that are asked of a class, in the order of the registry.

    Args:
        named: those that the settings name; none: the default, and what its own file has.
    """
    return [
        form.name
        for form in WEIGHT_FORMATS
        if form.name in (named or (DEFAULT,))
        or (not named and form.relevant and _own_file_has(subject, form.relevant))
    ]


def _own_file_has(subject: Subject, text: str) -> bool:
    """Return True if the file of a class, or of one that it is made from, has a text."""
    model_class = type(subject.make())
    homes = {base.__module__ for base in model_class.__mro__ if _MODELS in base.__module__}
    for home in homes:
        try:
            if text in inspect.getsource(sys.modules[home]):
                return True
        except (OSError, TypeError, KeyError):
            continue
    return False


def _in_blocks(
    checkpoint: Mapping[str, Tensor], names: set[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the checkpoint with those weights in float8 and scales, and what they stand for."""
    generator = torch.Generator().manual_seed(5)
    made: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for name, tensor in checkpoint.items():
        made[name] = tensor
        if name not in names:
            continue
        rows, columns = tensor.shape
        shape = (-(-rows // _BLOCK), -(-columns // _BLOCK))
        scale = torch.rand(shape, generator=generator) + 0.5
        made[name] = weight = tensor.to(torch.float8_e4m3fn)
        made[f"{name.removesuffix('weight')}{SCALE}"] = scale
        whole = scale.repeat_interleave(_BLOCK, 0)[:rows].repeat_interleave(_BLOCK, 1)[:, :columns]
        meant[name] = weight.float() * whole
    return made, meant


def _takes(reference: ReferenceTensors, names: list[str]) -> bool:
    """Return True if the class puts what float8 and scale stand for into the weights' parameters.

    Its rows are looked for, wherever in a fused parameter they are.
    """
    into = [to for to, names_of in reference.came_from.items() if names[0] in names_of]
    checkpoint, meant = _in_blocks(reference.subject.checkpoint, set(names))
    try:
        with threads_in_order(reference.subject.code):
            model = load_new(reference.subject, OwnedSource(checkpoint))
    except Exception:
        return False
    expected = meant[names[0]]
    parameters = named_parameters(model)
    return any(
        parameters[name].dim() == 2 and _has_rows(parameters[name].detach().float(), expected)
        for name in into
        if name in parameters
    )


def _has_rows(parameter: Tensor, expected: Tensor) -> bool:
    rows, columns = expected.shape
    if parameter.shape[1] != columns:
        return False
    return any(
        torch.allclose(parameter[at : at + rows], expected, rtol=CLOSE, atol=CLOSE * 0.01)
        for at in range(parameter.shape[0] - rows + 1)
        if torch.allclose(parameter[at], expected[0], rtol=CLOSE, atol=CLOSE * 0.01)
    )
