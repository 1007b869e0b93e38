"""Parts of SGLang that cannot be made on a CPU.

None of them runs while weights are loaded; the class's own code is not touched.
"""

import importlib
import re
import sys
from typing import Any

import torch

from . import stubs
from .audit import text_of
from .stubs import Stub


class StubInstaller(stubs.StubInstaller):
    """Knows an error by its place too: SGLang asserts much without a word."""

    def _part(self, error: Exception) -> bool:
        text = text_of(error)
        for words, pattern, replace in self.stubs:
            match = re.search(pattern, text)
            if match and (named := words.format(*match.groups())) not in self.replaced:
                replace(*match.groups())
                self.replaced.append(named)
                return True
        return False


def _cuda() -> None:
    """Questions about a GPU that constructors ask, and streams and events that they keep for a
    forward pass.
    """

    class Idle:
        def __init__(self, *arguments: Any, **more: Any) -> None:
            pass

    device: Any = torch.cuda
    device.Stream = device.Event = Idle
    device.get_device_capability = lambda *arguments: (9, 0)
    device.current_stream = lambda *arguments: Idle()
    device.current_device = lambda: 0
    properties = type(
        "Properties",
        (),
        {
            "multi_processor_count": 1,
            "total_memory": 1 << 34,
            "name": "none",
            "major": 9,
            "minor": 0,
        },
    )
    device.get_device_properties = lambda *arguments: properties()


def _everywhere(function: Any, instead: Any) -> None:
    """Put another function in a function's place, wherever it has been imported to."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is function:
                setattr(module, name, instead)


def _device() -> None:
    """`get_device()` names a GPU, or raises."""
    common: Any = importlib.import_module("sglang.srt.utils.common")
    _everywhere(common.get_device, lambda *arguments, **more: "cpu")


def _rotary() -> None:
    """The rotary embedding for CPUs knows one kind only; it has no weights."""
    factory: Any = importlib.import_module("sglang.srt.layers.rotary_embedding.factory")
    usual = factory.get_rope

    def rope(*arguments: Any, **more: Any) -> Any:
        more.pop("device", None)
        return usual(*arguments[:8], **more)

    factory.get_rope_cpu = rope


STUBS: tuple[Stub, ...] = (
    (
        "CUDA's streams, and what it says of the device",
        (
            r"Torch not compiled with CUDA enabled|No CUDA GPUs|Found no NVIDIA driver|requires"
            r" CUDA support"
        ),
        _cuda,
    ),
    ("the rotary embedding for CPUs", r"^AssertionError: .*\(factory\.py:\d+\)", _rotary),
    ("SGLang's choice of a device", r"No accelerator \(CUDA", _device),
)
