"""The implementations of transformers' image processors: by torchvision, and by PIL.

They resize by different arithmetic: single values of an image differ by a level or more. Which one
a model was trained with is written into its folder's preprocessor_config.json.
"""

import importlib
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic, Findings
from vtool.model_folder import ModelFolder
from vtool.words import first_line

RECORD = "vtool_backend"
"""The key of the image processor's settings that names the backend: transformers passes it on."""
IMAGE_BACKENDS = ("torchvision", "pil")


def choose_backend(wanted: str, folder: Path | None = None) -> str:
    """Return the backend that processes images and videos, a name of `IMAGE_BACKENDS`.

    Args:
        wanted: `data.image.backend`. For `auto` it is what the folder was trained with; if that is
            not known, torchvision where it is installed, as transformers and vLLM choose.
        folder: of a model or a run.

    Raises:
        Findings: `processor-backend-missing`.
    """
    recorded = recorded_backend(folder) if folder else None
    broken = why_no_torchvision()
    backend = wanted
    if wanted == "auto":
        backend = recorded or ("pil" if broken else "torchvision")
    if broken and (backend == "torchvision" or broken != _ABSENT):
        raise Findings(_missing(wanted, folder, broken))
    return backend


_ABSENT = "torchvision is not installed"


def recorded_backend(folder: Path) -> str | None:
    """Return the backend that a folder says it was trained with; None where it says none."""
    own = ModelFolder(folder).image_processor
    found = own.get(RECORD) if isinstance(own, dict) else None
    return found if found in IMAGE_BACKENDS else None


def why_no_torchvision() -> str | None:
    """Return why torchvision cannot be used here; None where it can."""
    from transformers.utils import is_torchvision_available

    if not is_torchvision_available():
        return _ABSENT
    try:
        importlib.import_module("torchvision.transforms.v2")
    except Exception as error:  # RuntimeError: a build for CUDA beside a torch for the CPU
        return f"torchvision is installed and does not import: {first_line(error)}"
    return None


def record_backend(image_processor: Any) -> None:
    """Write a processor's backend among its settings, which `save_pretrained` saves."""
    setattr(image_processor, RECORD, image_processor.backend)


def _missing(wanted: str, folder: Path | None, broken: str) -> Diagnostic:
    if broken != _ABSENT:
        message = f"{broken}; transformers imports no image processor beside it"
        help = "install the build that fits this torch, or uninstall torchvision"
    elif wanted == "torchvision":
        message = f"data.image.backend is torchvision, and {broken}"
        help = "pip install torchvision, in the build that fits this torch, or use auto or pil"
    else:
        message = f"{folder}: its images were processed by torchvision in training, and {broken}"
        help = (
            "pip install torchvision, in the build that fits this torch; data.image.backend=pil"
            " resizes by PIL, whose pixels differ slightly"
        )
    return Diagnostic("processor-backend-missing", message, help, parameter="data.image.backend")
