"""The answers of the process that reads recipes of strangers, and follows many references.

`limited_child` runs it, with no environment; `limited.py` has the side that asks.
"""

import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # this very package, wherever it is

from omegaconf import OmegaConf

from vtool.config.limited import Here
from vtool.config.load import read_foreign
from vtool.config.references import refuse_resolvers
from vtool.diagnostics import Findings


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Call a function, and return its result, or the findings that it raises."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    OmegaConf.clear_resolvers()
    if not request["trusted"]:
        refuse_resolvers()
    function, arguments = pickle.loads(request["task"])
    try:
        return {"result": pickle.dumps(function(*arguments))}
    except Findings as findings:
        return {"findings": pickle.dumps(findings)}
    except MemoryError:
        raise
    except Exception:
        return {"crash": traceback.format_exc()}


assert read_foreign, "what is imported for a first recipe is not its own time"
Here.limited = True
