"""Take functions out of a file of a release, so that what they do not use need not be there."""

import ast
import sys
from pathlib import Path
from types import ModuleType


def take(file, name, within=None, **names):
    """Return a function, or a method of the class `within`; `names` are what it looks up."""
    return take_all(file, (name,), within, **names)[name]


def take_all(file, wanted, within=None, **names):
    """Return every name that these functions and constants look up: those given, and each other.

    Of decorators those stay that are given.
    """
    tree = ast.parse(Path(file).read_text("utf-8"))
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == within]
    body = classes[0].body if within else tree.body
    there = {one.name: one for one in body if isinstance(one, ast.FunctionDef)}
    there |= {one.targets[0].id: one for one in tree.body if is_constant(one)}
    for found in (there[name] for name in wanted):
        if is_constant(found):
            exec(compile(ast.Module([found], []), str(file), "exec"), names)
            continue
        kept = [one for one in found.decorator_list if getattr(one, "id", None) in names]
        found.decorator_list, found.returns = kept, None
        for argument in (*found.args.args, *found.args.kwonlyargs):
            argument.annotation = None
        exec(compile(ast.Module([found], []), str(file), "exec"), names)
    return names


def is_constant(node):
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)


def stub(name, **names):
    """Put a module of these names where an `import` inside of a function looks for it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    sys.modules[name].__dict__.update(names)
