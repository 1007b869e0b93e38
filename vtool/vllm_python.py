"""The Python that has vLLM: mostly of its own environment, since vLLM pins dependencies."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "VTOOL_VLLM_PYTHON"
BUILT_PYTHON = Path(".vllm-venv/bin/python")
"""The interpreter that `make vllm-env` makes, in the folder that it is called in."""


def vllm_python() -> str | None:
    """Return the Python that is to run vLLM; None where none is known.

    What VTOOL_VLLM_PYTHON names; else this one, where it has vLLM; else what `make vllm-env` has
    made: here, or next to the virtual environment that vtool runs in.
    """
    if named := os.environ.get(VARIABLE):
        return named
    if find_spec("vllm") is not None:
        return sys.executable
    beside_ours = Path(sys.prefix).parent / BUILT_PYTHON
    return next((str(each) for each in (BUILT_PYTHON, beside_ours) if each.exists()), None)
