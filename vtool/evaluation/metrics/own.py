"""A metric of the user's: a function of a Python file."""

import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic, Findings
from vtool.evaluation.metrics.metric import Metric


def own_metric(given: str) -> Metric:
    """Return the metric `FILE.py:function`; the function is given an answer and its reference.

    Raises:
        Findings: `metric-failed`, where there is no such function, or the file raises.
    """
    path, _, name = given.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise _unusable(given, f"there is no file {path}")
    spec = spec_from_file_location(f"vtool_own_metric_{abs(hash(str(file.resolve())))}", file)
    assert spec is not None, "it ends with .py"
    assert spec.loader is not None, "it ends with .py"
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise _unusable(given, f"importing {path} raises {described(error, file)}") from error
    function: Any = getattr(module, name, None)
    if not callable(function):
        raise _unusable(given, f"{path} has no function {name}")
    return Metric(given, "the mean of your function", function)


def described(error: BaseException, file: Path | None = None) -> str:
    """Return an exception in a line, with the innermost line of the user's file, if it is there."""
    calls = traceback.extract_tb(error.__traceback__)
    ours = [c for c in calls if file is not None and Path(c.filename).name == file.name]
    where = f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {lines[0]}' if lines else ''}{where}"


def _unusable(given: str, what: str) -> Findings:
    help = "--metric FILE.py:function, of a function that returns a number for (answer, reference)"
    return Findings(Diagnostic("metric-failed", f"--metric {given}: {what}", help), fatal=True)
