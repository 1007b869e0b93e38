"""The state of torch, asked in a process of its own: importing it can raise, crash or hang."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from vtool.diagnostics import Diagnostic

_SECONDS = 120.0
"""The longest that an import may take. From a cold disk over a network it is a minute."""
# torch_npu is asked for by name too: where TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set, `import torch`
# leaves it alone, and vtool does not.
_ASK = """
import json, sys, importlib.util
import torch
found = {"version": torch.__version__, "cuda": [], "npu": [], "npu_error": None}
found |= {"torchvision": None, "torchvision_error": None}
if torch.cuda.is_available():
    found["cuda"] = list(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
if importlib.util.find_spec("torch_npu"):
    try:
        import torch_npu
        if torch.npu.is_available():
            found["npu"] = list(map(torch.npu.get_device_name, range(torch.npu.device_count())))
    except Exception as error:
        found["npu_error"] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
if importlib.util.find_spec("torchvision"):
    try:
        import torchvision.transforms.v2
        found["torchvision"] = torchvision.__version__
    except Exception as error:
        found["torchvision_error"] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
print("\\n" + json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class TorchAnswer:
    """The outcome of importing torch."""

    version: str | None = None
    """The version of torch; None where it could not be imported."""
    cuda: tuple[str, ...] = ()
    """The names of the CUDA devices that torch finds."""
    npu: tuple[str, ...] = ()
    """The names of the NPUs that torch finds."""
    npu_error: str | None = None
    """The reason why torch_npu, which is installed, cannot be imported, while torch can."""
    torchvision: str | None = None
    """The version of torchvision; None where it is not installed, or cannot be imported."""
    torchvision_error: str | None = None
    """The reason why torchvision, which is installed, cannot be imported, while torch can."""
    error: str | None = None
    """The last line that the import wrote."""
    alone: bool = False
    """True where torch can be imported when it does not load other packages."""


def ask_torch(
    environment: Mapping[str, str] | None = None, seconds: float = _SECONDS
) -> TorchAnswer:
    """Import torch in another process, and list the devices."""
    given = dict(os.environ if environment is None else environment)
    found = _ask(given, seconds)
    if found.error is None or given.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        return found
    alone = _ask({**given, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, seconds)
    return TorchAnswer(error=found.error, alone=alone.error is None)


def _ask(environment: Mapping[str, str], seconds: float) -> TorchAnswer:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ASK],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TorchAnswer(error=f"it has not come back within {seconds:g} seconds")
    # torch_npu may have more to say at its end than our answer.
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"version"')]
    if done.returncode == 0 and answers:
        found = json.loads(answers[-1])
        return TorchAnswer(
            found["version"],
            tuple(found["cuda"]),
            tuple(found["npu"]),
            found["npu_error"],
            found["torchvision"],
            found["torchvision_error"],
        )
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    ended = (
        f"it was ended by signal {-done.returncode}"
        if done.returncode < 0
        else f"it ended with status {done.returncode}"
    )
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return TorchAnswer(
        error=(
            " ← ".join(dict.fromkeys([raised[-1], raised[0]]))
            if raised
            else lines[-1]
            if lines
            else ended
        )
    )


def not_imported(answer: TorchAnswer, torch_npu: str | None, cann: bool) -> Diagnostic:
    """Return the finding, with the likeliest reason.

    Args:
        torch_npu: its version, where it is installed.
        cann: true where CANN has been found.
    """
    message = f"`import torch` fails: {answer.error}"
    help = "install it again: pip install --force-reinstall torch"
    if answer.alone:
        message += (
            "; with TORCH_DEVICE_BACKEND_AUTOLOAD=0, which keeps it from loading other packages, it"
            " is imported"
        )
        help = (
            "uninstall the package that it loads (entry points torch.backends), or set"
            " TORCH_DEVICE_BACKEND_AUTOLOAD=0"
        )
    if torch_npu is not None and not cann:
        help = (
            f"torch loads torch_npu {torch_npu} by itself, which needs CANN: source its set_env.sh,"
            " or pip uninstall torch_npu"
        )
    return Diagnostic("torch-does-not-import", message, help, "torch")
