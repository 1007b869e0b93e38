"""Take one function out of a file of a release, so that what it does not use need not be there."""

import ast
import sys
from pathlib import Path
from types import ModuleType


def take(file, name, within=None, **names):
    """Return a function, or a method of the class `within`; `names` are what it looks up."""
    tree = ast.parse(Path(file).read_text("utf-8"))
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == within]
    body = classes[0].body if within else tree.body
    found = next(one for one in body if isinstance(one, ast.FunctionDef) and one.name == name)
    found.decorator_list, found.returns = [], None
    for argument in (*found.args.args, *found.args.kwonlyargs):
        argument.annotation = None
    exec(compile(ast.Module([found], []), str(file), "exec"), names)
    return names[name]


def stub(name, **names):
    """Put a module of these names where an `import` inside of a function looks for it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    sys.modules[name].__dict__.update(names)
