"""Finds names of a checkpoint for a class without a twin, by trying them one at a time.

A name is kept where it writes something. Candidates come from the class's own code: the pairs of
names in its mapping of fused weights, and its prefixes. What is found loads; it need not be all,
and says nothing of names that the class should take and does not.
"""

import ast
import inspect
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from .errors import NotRun, error_text
from .state import MARKS, fill_with_byte, marked, named_parameters
from .subject import NamedTensor

MOST_PREFIXES = 12
_LEAST = 0.5
"""The share of the elements of all parameters that must be reached for a verdict."""
GIVE_UP = 0.1
"""The share of elements that half of the parameters must reach for the others to be tried."""
MAPPER = "hf_to_vllm_mapper"
"""The attribute with a class's mapping from the checkpoint's names to its own."""
MAPPING_KINDS = {
    "orig_to_new_prefix": "^{}",
    "orig_to_new_substr": "{}",
    "orig_to_new_suffix": "{}$",
}
"""The tables of a mapping, and the pattern for the new name in each."""
FUSED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_EXPERTS = {
    "w13_weight": (
        ("up_proj.weight",),
        ("gate_proj.weight", "up_proj.weight"),
        ("w1.weight", "w3.weight"),
        ("gate.weight", "up.weight"),
    ),
    "w2_weight": (("down_proj.weight",), ("w2.weight",), ("down.weight",)),
}
ALL_EXPERTS = {"w13_weight": ("gate_up_proj", "fc"), "w2_weight": ("down_proj", "proj")}
"""Names of one tensor with a matrix of every expert, in the place of a parameter's."""
Candidate = tuple[str, tuple[int, ...]]
"""A name and a shape that a tensor of the checkpoint may have."""
Rename = Callable[[str], str]
LoadNamed = Callable[[Callable[[], Iterator[NamedTensor]]], None]


def discover(
    model: nn.Module,
    progress: Callable[[str], None],
    run: Callable[[Callable[[], None]], None] = lambda load: load(),
) -> dict[str, Tensor]:
    """Return a checkpoint of random values under names that the class takes.

    Args:
        run: runs a load, and may run it again where it raises.

    Raises:
        NotRun: too few were found.
    """
    errors: list[str] = []

    def load(tensors: Callable[[], Iterator[NamedTensor]]) -> None:
        try:
            run(lambda: model.load_weights(tensors()))  # type: ignore[operator]
        except Exception as error:
            errors.append(error_text(error))
            raise

    found, reached, raised = _search(model, progress, load, keep_raising=False)
    if raised and (not found or reached < _LEAST):
        # Some classes count at the end whether everything has come, and raise: what was written
        # until then stays written.
        found, reached, _ = _search(model, progress, load, keep_raising=True)
    if not found or reached < _LEAST:
        reason = f"no twin, and names were found for {reached:.0%} of its elements only"
        text, times = next(iter(Counter(errors).most_common(1)), ("", 0))
        raise NotRun(f"{reason}; it raises {text}" if 2 * times > len(errors) else reason)
    return found


def _search(
    model: nn.Module, progress: Callable[[str], None], load: LoadNamed, keep_raising: bool
) -> tuple[dict[str, Tensor], float, bool]:
    """Try every candidate for every parameter.

    Args:
        load: loads what a function yields into the model.
        keep_raising: keep tensors that write something and then raise. Such a name may also be
            wrong, and stop half-way.

    Returns:
        The tensors that write something; the share of all elements that was reached; and whether
        any tensor wrote something and raised.
    """
    parameters = named_parameters(model)
    fill_with_byte(model, MARKS[0])
    raised = False
    pairs, prefixes = _pairs(model), _prefixes(model)
    generator = torch.Generator().manual_seed(3)
    found: dict[str, Tensor] = {}
    worked: list[Rename] = []
    unreached: set[str] = set()
    tried = written = 0
    for number, (name, parameter) in enumerate(parameters.items()):
        if number % 16 == 0:
            progress(f"names: {number} of {len(parameters)}")
        if number > len(parameters) // 2 and written < GIVE_UP * tried:
            break
        kind = re.sub(r"\d+", "#", name)
        owner = _owner(model, name)
        for candidate, shape in _candidates(name, parameter, owner, pairs):
            left = _left(parameter)
            if not left:
                break
            # What none of them reached in one layer, none reaches in the next.
            renames = (
                worked[:]
                if kind in unreached
                else [*worked, *(rename for rename in prefixes if rename not in worked)]
            )
            tensor: Tensor | None = None  # drawn once, for the first name that is tried
            for rename in renames:
                full = rename(candidate)
                if full in found:
                    continue
                if tensor is None:
                    tensor = _random(shape, parameter, generator)
                wrote, whole = _writes(load, parameter, full, tensor, left)
                raised |= wrote and not whole
                if wrote and not whole:
                    left = _left(parameter)  # what it wrote is not the next name's
                if wrote and (whole or keep_raising):
                    found[full] = tensor
                    if rename in worked:
                        worked.remove(rename)
                    worked.insert(0, rename)  # the first to try next
                    break
        left = _left(parameter)
        tried, written = tried + parameter.numel(), written + parameter.numel() - left
        if left == parameter.numel():
            unreached.add(kind)
    total = sum(parameter.numel() for parameter in parameters.values())
    reached = total - sum(_left(parameter) for parameter in parameters.values())
    return found, reached / max(total, 1), raised


def _random(shape: tuple[int, ...], parameter: Tensor, generator: torch.Generator) -> Tensor:
    """Return random values, in the dtype that a checkpoint has for a parameter."""
    values = torch.randn(shape, generator=generator) * 0.5 + 0.01
    return values.to(torch.bfloat16 if parameter.is_floating_point() else parameter.dtype)


def _left(parameter: Tensor) -> int:
    return int(marked(parameter, MARKS[0]).count_nonzero())


def _writes(
    load: LoadNamed, parameter: Tensor, name: str, tensor: Tensor, left: int
) -> tuple[bool, bool]:
    """Load one tensor.

    Returns:
        Whether it writes all of its elements to places that no other has written; and whether the
        load comes to its end.
    """
    whole = False
    with suppress(Exception):
        load(lambda: iter([(name, tensor.clone())]))
        whole = True
    return left - _left(parameter) >= tensor.numel(), whole


def _owner(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name.rpartition(".")[0])
    except AttributeError:
        return None


def _candidates(
    name: str, parameter: Tensor, owner: nn.Module | None, pairs: Sequence[tuple[str, str]]
) -> Iterator[Candidate]:
    shape = tuple(parameter.shape)
    leaf = name.rpartition(".")[2]
    if leaf in _EXPERTS and len(shape) == 3:
        yield from _experts(name, leaf, shape)
        return
    yield name, shape
    for old, new in pairs:
        if f".{old}." in f".{name}":
            part = f".{name}".replace(f".{old}.", f".{new}.")[1:]
            for size in _sizes(owner, shape):
                yield part, (size, *shape[1:])


def _sizes(owner: Any, shape: tuple[int, ...]) -> list[int]:
    """Return the first dimensions that a part of a fused weight may have."""
    if not shape:
        return []
    heads = (
        ("total_num_heads", "total_num_kv_heads") if hasattr(owner, "total_num_kv_heads") else ()
    )
    head_size = getattr(owner, "head_size", None) or getattr(owner, "head_dim", None) or 0
    sizes = [
        *(getattr(owner, name) * head_size for name in heads),
        *(getattr(owner, "output_sizes", None) or ()),
        shape[0],
        *(shape[0] // parts for parts in (2, 3, 4) if shape[0] % parts == 0),
    ]
    return [int(size) for size in dict.fromkeys(sizes) if 0 < size <= shape[0]]


def _experts(name: str, leaf: str, shape: tuple[int, ...]) -> Iterator[Candidate]:
    module = name.rpartition(".")[0].removesuffix(".routed_experts")
    for endings in _EXPERTS[leaf]:
        rows = shape[1] // len(endings)
        for expert, ending in itertools.product(range(shape[0]), endings):
            yield f"{module}.{expert}.{ending}", (rows, shape[2])
    for ending in ALL_EXPERTS[leaf]:
        yield f"{module}.{ending}", shape
    above = module.removesuffix(".experts")
    for endings in _EXPERTS[leaf]:
        for ending in endings:
            yield f"{above}.{ending}", (shape[0], shape[1] // len(endings), shape[2])


def _pairs(model: nn.Module) -> list[tuple[str, str]]:
    """Return pairs (part of a parameter's name, part of the checkpoint's) in the classes' code."""
    found = {(fused, part): None for fused, parts in FUSED.items() for part in parts}
    for node in _nodes(model.modules()):
        match node:
            case ast.Tuple(elts=[ast.Constant(str(old)), ast.Constant(str(new)), *_]):
                found[old.strip("."), new.strip(".")] = None
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    found |= dict.fromkeys(_pairs_of_item(key, value))
    return [(old, new) for old, new in found if old and new and old != new]


def _pairs_of_item(key: ast.expr | None, value: ast.expr) -> list[tuple[str, str]]:
    """Return the pairs of an item of a dict: {fused: [parts]}, {new: old}, {new: (old, ...)}."""
    match key, value:
        case ast.Constant(str(old)), ast.List(elts=parts):
            texts = [part.value for part in parts if isinstance(part, ast.Constant)]
            return [(old, text) for text in texts if isinstance(text, str)]
        case (ast.Constant(str(new)), ast.Constant(str(old))) | (
            ast.Constant(str(new)),
            ast.Tuple(elts=[ast.Constant(str(old)), *_]),
        ):
            return [(old.strip("."), new.strip("."))]
    return []


def _written_prefixes(model: nn.Module) -> list[str]:
    """Return the prefixes that the code of the model's class and its children's asks for."""
    found: dict[str, None] = {}
    for node in _nodes([model, *model.children()]):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="startswith" | "removeprefix"),
                args=[ast.Constant(str(prefix)), *_],
            ):
                found[f"{prefix.rstrip('.')}."] = None
    return list(found)[:MOST_PREFIXES]


def _nodes(objects: Iterable[nn.Module]) -> Iterator[ast.AST]:
    """Yield the syntax of the files of models that the objects' classes are from."""
    for name in dict.fromkeys(type(each).__module__ for each in objects):
        if ".models." in name:
            with suppress(OSError, TypeError, SyntaxError):
                yield from ast.walk(ast.parse(inspect.getsource(sys.modules[name])))


def _prefixes(model: nn.Module) -> list[Rename]:
    """Return functions from a parameter's name to the checkpoint's.

    Among them: the name as it is, without or with `model.`, and the class's mapping backwards.
    """
    mapper = getattr(model, MAPPER, None)
    rules: list[tuple[str, str]] = [
        (pattern.format(re.escape(new)), old)
        for kind, pattern in MAPPING_KINDS.items()
        for old, new in (getattr(mapper, kind, None) or {}).items()
        if isinstance(new, str) and new
    ]
    return [
        *([_first_of(*rules)] if rules else []),
        lambda name: name,
        *map(_first_of, rules),
        lambda name: name.removeprefix("model."),
        lambda name: f"model.{name}",
        # Draft models take names of the model that they draft for.
        _first_of((r"\.mtp_block\.", ".")),
        lambda name: re.sub(r"\.(mtp_[a-z_]+)\.", r".\1.0.", name, count=1),
        _first_of((r"^model\.", "mtp.")),
        _first_of((r"^model\.", "model.mtp.")),
        *(
            _below(name, rename)
            for name, child in model.named_children()
            if getattr(child, MAPPER, None)
            for rename in _prefixes(child)
        ),
        *(
            _first_of((rf"^([^.]+\.){{{parts}}}", prefix))
            for prefix in _written_prefixes(model)
            for parts in (1, 2, 3)
        ),
    ]


def _below(prefix: str, rename: Rename) -> Rename:
    """Return the renaming for names below a prefix."""
    return lambda name: (
        f"{prefix}.{rename(name.removeprefix(f'{prefix}.'))}"
        if name.startswith(f"{prefix}.")
        else name
    )


def _first_of(*rules: tuple[str, str]) -> Rename:
    """Return a renaming by the first rule, a pattern and its replacement, that changes a name."""

    def rename(name: str) -> str:
        for pattern, new in rules:
            changed = re.sub(pattern, new.replace("\\", r"\\"), name, count=1)
            if changed != name:
                return changed
        return name

    return rename
