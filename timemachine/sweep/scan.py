"""Find transformers' classes that Trainer may train wrongly: read, not run.

Trainer asks whether a class's forward takes `**kwargs`. If so it hands over `num_items_in_batch`,
and leaves it to the class to divide. A class whose loss never sees it divides by nothing more than
its own micro-batch.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ENDINGS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


def candidates(package: Path) -> list[str]:
    """Return the classes of a transformers that take loss arguments and seem to leave them."""
    return sorted(
        {
            name
            for file in package.glob("models/*/modeling_*.py")
            for name in _in_file(ast.parse(file.read_text("utf-8")))
        }
    )


def _in_file(tree: ast.Module) -> Iterator[str]:
    for one in tree.body:
        if not isinstance(one, ast.ClassDef) or not one.name.endswith(ENDINGS):
            continue
        own = {name.id: part for part in one.body for name in _assigned(part)}
        forward = next((part for part in one.body if getattr(part, "name", "") == "forward"), None)
        if "accepts_loss_kwargs" in own or not isinstance(forward, ast.FunctionDef):
            continue
        arguments = forward.args
        names = {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}
        if arguments.kwarg and "labels" in names and not _hands_on(forward):
            yield one.name


def _assigned(part: ast.stmt) -> Iterator[ast.Name]:
    if isinstance(part, ast.Assign):
        yield from (target for target in part.targets if isinstance(target, ast.Name))


def _hands_on(forward: ast.FunctionDef) -> bool:
    """Return whether the loss is `self.loss_function` alone, and is handed what forward was."""
    calls = [node for node in ast.walk(forward) if isinstance(node, ast.Call)]
    named = [(_name(call.func), call) for call in calls]
    if any(name in ("CrossEntropyLoss", "cross_entropy") for name, _ in named):
        return False
    losses = [call for name, call in named if name == "loss_function"]
    return bool(losses) and all(
        any(given.arg in (None, "num_items_in_batch") for given in call.keywords) for call in losses
    )


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))
