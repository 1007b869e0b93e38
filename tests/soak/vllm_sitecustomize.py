"""Lets vLLM's CPU wheel start where pip chose CUDA builds of torchvision, torchaudio and
torchcodec, as it does from PyPI alone.

The libraries of those builds need CUDA's: `import torchvision` stops at "operator torchvision::nms
does not exist", the other two at "Could not load this library". To serve text and images vLLM calls
neither that operator, nor sound, nor video codecs. It looks at model classes in processes of its
own, so that what helps must hold in every process of that environment: `make vllm-env` puts this
file into its site-packages, with a `.pth` that imports it. (Named `sitecustomize.py` it would be
hidden by the one that some Linux distributions have next to the standard library.)

Where torchvision's library loads, as a build for the CPU does, nothing is defined here.
"""

import importlib.abc
import importlib.util
import sys
from pathlib import Path
from typing import Any

# An import of these now raises ModuleNotFoundError, and transformers and vLLM take them for not
# installed.
for absent in ("torchaudio", "torchcodec"):
    sys.modules.setdefault(absent, None)  # type: ignore[arg-type]

OPERATORS = ("nms", "qnms")
definitions: list[Any] = []  # what is defined lasts as long as the object that defined it


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Defines the operators that torchvision's Python code describes, once, when it is first looked
    for.
    """

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            found = importlib.util.find_spec(fullname)
            if (
                found is not None
                and found.origin is not None
                and not _library_loads(Path(found.origin).parent)
            ):
                _define()


def _library_loads(package: Path) -> bool:
    import torch

    try:
        torch.ops.load_library(next(package.glob("_C*.so")))
    except (OSError, StopIteration):
        return False
    return True


def _define() -> None:
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    definitions.append(library)


sys.meta_path.insert(0, _BeforeTorchvision())
