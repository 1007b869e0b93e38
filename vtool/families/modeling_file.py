"""`model.modeling`, FILE.py:CLASS: what the file says without being imported. Torch-free."""

import ast
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from vtool.contents import small_file
from vtool.diagnostics import Diagnostic, Origin
from vtool.diagnostics.near_miss import did_you_mean, near

RULE = "not-a-model-class"
SETTING = "model.modeling"


def split_modeling(modeling: str) -> tuple[Path, str]:
    """Return the file and the class that the setting names."""
    file, _, name = modeling.rpartition(":")
    return Path(file), name


def resolve_modeling(modeling: str) -> str:
    """Return the setting with the whole path, as an object shows it."""
    file, name = split_modeling(modeling)
    return f"{os.path.realpath(file)}:{name}"


def is_well_formed(modeling: str) -> bool:
    """Return whether the setting has the form FILE.py:CLASS."""
    file, name = split_modeling(modeling)
    return file.suffix == ".py" and name.isidentifier()


def check_modeling_file(modeling: str) -> Diagnostic | None:
    """Check that a file that exists is Python, and has the class at its top level."""
    file, name = split_modeling(modeling)
    try:
        tree = ast.parse(small_file(file), str(file))
    except SyntaxError as error:
        message = f"{file} is not Python: {error.msg}"
        origin = Origin(str(file), error.lineno, error.offset)
        return Diagnostic(RULE, message, parameter=SETTING, origin=origin)
    # the last two of text that is nested too deeply
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return Diagnostic(RULE, f"{file} cannot be read: {error}", parameter=SETTING)
    classes = list(dict.fromkeys(_classes(tree.body)))
    if name in classes:
        return None
    there = f"it has {', '.join(classes)}" if classes else "it has no class at all"
    help = (
        did_you_mean(near(name, classes)) or f"name a class that is written in this file; {there}"
    )
    return Diagnostic(RULE, f"{file} has no class `{name}`", help, SETTING, seen=name)


def _classes(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names of classes at a file's top level, also below `if` and `try`."""
    for statement in statements:
        if isinstance(statement, ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.If | ast.Try):
            yield from _classes([*statement.body, *statement.orelse])
