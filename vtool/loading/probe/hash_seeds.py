"""Loads the user's own object in other processes, whose sets of strings have another order.

The order is fixed when an interpreter starts. Classes of frameworks are not asked: to import one
takes longer than all of its other checks.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .facts import ValueDifference
from .state import NamedState, compare_states

SEEDS = ("1", "2", "3")
"""More than one: a set of two has the same order with every other seed."""
_SECONDS = 60.0
_PROBE = Path(__file__).parent
_STATE = "--state"
"""The word with which the probe writes the tensors of one load."""
ORDERED_BY_HASH = ("set", "frozenset", "hash")


def depends_on_hashes(code: Sequence[str]) -> bool:
    """Return whether a module of the user's code makes a set, or calls `hash`.

    Args:
        code: beginnings of the paths of that code.
    """
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    for file in files:
        if (
            not file.endswith(".py")
            or not file.startswith(tuple(code))
            or "site-packages" in Path(file).parts
        ):
            continue
        if any(map(_by_hash, ast.walk(ast.parse(Path(file).read_bytes())))):
            return True
    return False


def _by_hash(node: ast.AST) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in ORDERED_BY_HASH
        # names of two dicts that are taken from one another
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr() | ast.Sub() | ast.BitXor(), left=left):
            called = left.func if isinstance(left, ast.Call) else None
            return isinstance(called, ast.Attribute) and called.attr in ("keys", "items")
    return False


def differences_by_seed(
    expected: NamedState,
    unwritten: Mapping[str, Tensor],
    *,
    name: str,
    checkpoint: str | None,
    folder: Path,
) -> dict[str, ValueDifference]:
    """Return the tensors that come out otherwise in a process with another hash seed.

    Args:
        expected: the tensors that were loaded in this process.
        unwritten: masks of elements that are not compared.
        name: `FILE.py:function`.
        checkpoint: the folder that it is loaded from, where the user has named one.
        folder: for the tensors of the other process.

    Raises:
        RuntimeError: a process ended without its tensors.
    """
    for seed in SEEDS:
        if seed == os.environ.get("PYTHONHASHSEED"):
            continue
        state = _state_with(seed, name, checkpoint, folder)
        if found := compare_states(expected, state, unwritten):
            return found
    return {}


def _state_with(seed: str, name: str, checkpoint: str | None, folder: Path) -> NamedState:
    file = folder / f"seed-{seed}"
    try:
        done = subprocess.run(
            [sys.executable, str(_PROBE), _STATE, name, checkpoint or "", str(file)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"it took longer than {_SECONDS:g} seconds") from error
    if done.returncode:
        raise RuntimeError(f"it ended with status {done.returncode}")
    state: NamedState = torch.load(file, weights_only=True)
    file.unlink()
    return state
