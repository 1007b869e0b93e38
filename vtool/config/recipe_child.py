"""The answers of the process that reads recipes of strangers, and follows many references.

`limited_child` runs it, with no environment; `limited.py` has the side that asks.
"""

import os
import pickle
import sys
import traceback
from errno import EACCES, ENOENT
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # this very package, wherever it is

from omegaconf import OmegaConf

from vtool.config.limited import Here
from vtool.config.load import read_foreign
from vtool.config.references import refuse_resolvers
from vtool.config.resources import allowed_roots
from vtool.diagnostics import Findings


class _Opened:
    """The folders whose files this process may open and list; empty: all."""

    roots: tuple[Path, ...] = ()


def _is_outside(path: Any, *more: Path) -> bool:
    """Return whether a path is in none of these folders, all links followed."""
    if not _Opened.roots or not isinstance(path, str | bytes | os.PathLike):
        return False
    try:
        real = Path(os.path.realpath(os.fsdecode(path)))
    except (OSError, ValueError):
        return True
    return not any(real.is_relative_to(root) for root in (*_Opened.roots, *more))


def _refuse_outside(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a file outside of these folders, whoever opens it."""
    if event not in ("open", "os.listdir", "os.scandir") or not _Opened.roots:
        return
    path = arguments[0]
    # of a checkout on Python's path only code is read, and an import lists its folders
    is_code = event != "open" or str(path).endswith(_CODE)
    if _is_outside(path, *(_CHECKOUTS if is_code else ())):
        raise PermissionError(EACCES, "outside of the recipe's folder (--untrusted)", path)


_stat = os.stat


def _stat_inside(path: Any, **given: Any) -> os.stat_result:
    """Stat a path; a path elsewhere is not there, whether it is or not."""
    if _is_outside(path):
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path)
    return _stat(path, **given)


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Call a function, and return its result, or the findings that it raises."""
    try:
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        OmegaConf.clear_resolvers()
        _Opened.roots = ()
        function, arguments = pickle.loads(request["task"])
        Here.stranger = not request["trusted"]
        if Here.stranger:
            refuse_resolvers()
            _Opened.roots = (*allowed_roots(Path(arguments[0])), *_PYTHONS)
        return {"result": pickle.dumps(function(*arguments))}
    except Findings as findings:
        return {"findings": pickle.dumps(findings)}
    except MemoryError:
        raise
    except Exception:
        return {"crash": traceback.format_exc()}


_ON_PATH = {Path(each).resolve() for each in sys.path}
_INSTALLED = {each for each in _ON_PATH if each.name in ("site-packages", "dist-packages")}
_PREFIXES = {Path(each).resolve() for each in (sys.prefix, sys.base_prefix)}
_PYTHONS = (*_INSTALLED, *_PREFIXES, Path(__file__).resolve().parents[1])
_CHECKOUTS = tuple(_ON_PATH.difference(_PYTHONS))
_CODE = (".py", ".pyc", ".so")
sys.addaudithook(_refuse_outside)
os.stat = _stat_inside
assert callable(read_foreign), "what is imported for a first recipe is not its own time"
Here.limited = True
