"""`model.modeling`, FILE.py:CLASS:

what can be told of the file without importing it. Torch-free.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from vtool.diagnostics import Diagnostic, Origin
from vtool.diagnostics.near_miss import did_you_mean, near

RULE = "not-a-model-class"
SETTING = "model.modeling"


def split(modeling: str) -> tuple[Path, str]:
    """The file and the class that a setting of this form names."""
    file, _, name = modeling.rpartition(":")
    return Path(file), name


def resolved(modeling: str) -> str:
    """The same, wherever the command runs: the setting as an object shows it."""
    file, name = split(modeling)
    return f"{file.resolve()}:{name}"


def well_formed(modeling: str) -> bool:
    """Whether it has the form FILE.py:CLASS."""
    file, name = split(modeling)
    return file.suffix == ".py" and name.isidentifier()


def problem(modeling: str) -> Diagnostic | None:
    """What stands against a file that is there, as text: it is not Python, or has no such class."""
    file, name = split(modeling)
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        message = f"{file} is not Python: {error.msg}"
        return Diagnostic(
            RULE, message, parameter=SETTING, origin=Origin(str(file), error.lineno, error.offset)
        )
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
    """At the file's top, also below `if` and `try`."""
    for statement in statements:
        if isinstance(statement, ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.If | ast.Try):
            yield from _classes([*statement.body, *statement.orelse])
