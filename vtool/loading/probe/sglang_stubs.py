"""Replacements for parts of SGLang that cannot be made on a CPU; `stubs.STUBS` says when and why.

None of them runs while weights are loaded; the class's own code is not touched.
"""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import torch


class _Idle:
    """A stream or an event that nothing waits for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


def replace_cuda() -> None:
    """Answer the questions about a GPU that constructors ask, and give them idle streams."""
    cuda: Any = torch.cuda
    cuda.Stream = cuda.Event = _Idle
    cuda.get_device_capability = lambda *args: (9, 0)
    cuda.current_stream = lambda *args: _Idle()
    cuda.current_device = lambda: 0
    cuda.get_device_properties = lambda *args: SimpleNamespace(
        multi_processor_count=1, total_memory=1 << 34, name="none", major=9, minor=0
    )


def choose_cpu() -> None:
    """Have `get_device()` name the CPU, in every module that has imported it."""
    common: Any = importlib.import_module("sglang.srt.utils.common")
    function = common.get_device
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is function:
                setattr(module, name, lambda *args, **kwargs: "cpu")


def replace_rotary_embedding() -> None:
    """Make the usual rotary embedding in the place of the one for CPUs, which knows one kind."""
    factory: Any = importlib.import_module("sglang.srt.layers.rotary_embedding.factory")
    usual = factory.get_rope

    def rope(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device", None)
        return usual(*args[:8], **kwargs)

    factory.get_rope_cpu = rope
