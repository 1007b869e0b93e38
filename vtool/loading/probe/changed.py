"""Names the classes whose code git has changed since a commit: their files, and what these import.

A class is counted where its own file was changed, or one that this file imports, directly or not,
from a folder called `models` of the same package.
"""

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from .errors import NotRun

_MODELS = "models"
"""The folder whose files are followed: what lies elsewhere is no code of a model."""


def changed_subjects(
    modules: Mapping[str, str | None], package: Path, since: str
) -> tuple[str, ...]:
    """Return the subjects whose code was changed, in the order in which they come.

    Args:
        modules: the module of each subject's class; None where it is not known: such a subject is
            always among them.
        package: the folder of the package, whose name is the first word of the modules'.
        since: a commit of the git checkout in which the package lies. What was committed since it
            and this checkout went apart counts, and what is not committed yet.

    Raises:
        NotRun: the package lies in no git checkout, or there is no such commit.
    """
    changed = changed_files(package, since)
    if not changed:
        return ()
    return tuple(
        name
        for name, module in modules.items()
        if module is None or not changed.isdisjoint(_code_of(package, module))
    )


def changed_files(package: Path, since: str) -> frozenset[Path]:
    """Return the files below a folder that git says were changed since a commit; see above."""
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None:
        raise NotRun(f"{package} lies in no git checkout that git reads")
    if not _git(package, "ls-files", "--", "."):
        raise NotRun(f"{package} is in a folder of {top.strip()} that git does not keep")
    commit = _git(package, "rev-parse", "--verify", "--end-of-options", f"{since}^{{commit}}")
    if commit is None:
        raise NotRun(f"git knows no commit `{since}` in {top.strip()}")
    base = _git(package, "merge-base", commit.strip(), "HEAD")
    if base is None:
        raise NotRun(
            f"`{since}` and HEAD have no commit in common in {top.strip()}: the checkout may be"
            " shallow, and all of the history has to be fetched"
        )
    lists = (
        _git(package, "diff", "--name-only", "--no-renames", "--relative", "-z", base.strip()),
        _git(package, "ls-files", "--others", "--exclude-standard", "-z"),
    )
    if None in lists:
        raise NotRun(f"git does not compare {package} with `{since}`")
    names = [name for text in lists for name in (text or "").split("\0") if name]
    return frozenset((package / name).resolve() for name in names)


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git in a folder; None where it fails, or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            check=False,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


@cache
def _code_of(package: Path, module: str) -> frozenset[Path]:
    """Return the files of a module's code: its own, and those that it imports from models."""
    found: set[Path] = set()
    waiting = list(_files(package, module.split(".")[1:]))
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        waiting += (
            other
            for other in _imported(package, file)
            if _MODELS in other.relative_to(package.resolve()).parts
        )
    return frozenset(found)


@cache
def _imported(package: Path, file: Path) -> frozenset[Path]:
    """Return the files of the package that a file imports by name."""
    inside = [package.name, *file.relative_to(package.resolve()).with_suffix("").parts]
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(
        other
        for names in _imports(tree, inside)
        if names[:1] == [package.name]
        for other in _files(package, names[1:])
    )


def _imports(tree: ast.AST, inside: Sequence[str]) -> Iterator[list[str]]:
    """Yield the names of modules that a file may import, each as a list of words.

    Args:
        inside: the words of the file's own name.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = [*inside[: -node.level]] if node.level else []
            named = [*home, *(node.module.split(".") if node.module else ())]
            yield named
            yield from ([*named, alias.name] for alias in node.names)


def _files(package: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield the file of a module below a package; of a package, all of its folder."""
    place = package.resolve().joinpath(*names)
    if (file := place.with_suffix(".py")).is_file():
        yield file
    elif place != package.resolve() and (place / "__init__.py").is_file():
        # which of its files it imports may depend on the platform; one with packages inside
        # holds models that have nothing in common
        inner = sorted(place.rglob("*.py"))
        yield from [place / "__init__.py"] if place.name == _MODELS else inner
