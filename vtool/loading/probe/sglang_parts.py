"""Parts of SGLang that cannot be made on a CPU. None of them runs while weights are loaded; the class's own code is not touched."""

from typing import Any

import torch

from .mend import Stub


def _cuda() -> None:
    """Questions about a GPU that constructors ask, and streams and events that they keep for a forward pass."""

    class Idle:
        def __init__(self, *arguments: Any, **more: Any) -> None:
            pass

    device: Any = torch.cuda
    device.Stream = device.Event = Idle
    device.get_device_capability = lambda *arguments: (9, 0)
    device.current_stream = lambda *arguments: Idle()
    device.current_device = lambda: 0


STUBS: tuple[Stub, ...] = (
    ("CUDA's streams, and what it says of the device", r"Torch not compiled with CUDA enabled|No CUDA GPUs|Found no NVIDIA driver", _cuda),
)
