"""The answers of the process that reads recipes of strangers, and follows many references.

`limited_child` runs it, with no environment; `limited.py` has the side that asks.
"""

import os
import pickle
import sys
import traceback
from errno import EACCES
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # this very package, wherever it is

from omegaconf import OmegaConf

from vtool.config.limited import Here
from vtool.config.load import read_foreign
from vtool.config.references import refuse_resolvers
from vtool.config.resources import allowed_roots, lies_in_one
from vtool.diagnostics import Findings


class _Opened:
    """The folders whose files this process may open and list; empty: all."""

    roots: tuple[Path, ...] = ()


def _refuse_outside(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a file outside of these folders, whoever opens it."""
    if event not in ("open", "os.listdir", "os.scandir") or not _Opened.roots:
        return
    path = arguments[0]
    if isinstance(path, str | bytes | os.PathLike) and not lies_in_one(
        Path(os.fsdecode(path)), _Opened.roots
    ):
        raise PermissionError(EACCES, "outside of the recipe's folder (--untrusted)", path)


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


_PYTHONS = tuple({Path(each).resolve() for each in (*sys.path, sys.prefix, sys.base_prefix)})
sys.addaudithook(_refuse_outside)
assert callable(read_foreign), "what is imported for a first recipe is not its own time"
Here.limited = True
