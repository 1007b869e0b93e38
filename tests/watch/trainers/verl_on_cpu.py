"""A plug-in of verl for machines without an accelerator: its FSDP engine on the CPU.

verl imports it in every process where VERL_USE_EXTERNAL_MODULES names it. It sets a seed: verl
draws adapters without one.
"""

import contextlib
import os
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, set_platform


class _Device(ModuleType):
    """Answers what verl asks of `torch.cuda`: `torch.cpu`, and nothing held in a cache."""

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: {"mem_get_info": (1, 1), "get_device_name": "CPU"}.get(name, 0)


class Cpu(PlatformBase):
    device_name = vendor_name = "cpu"
    device_module = _Device("cpu_device")

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def nvtx_range(self, msg: str) -> Any:
        return contextlib.nullcontext()

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def _nothing(self, *_: Any) -> None:
        """Do what a device would need."""

    set_device = synchronize = manual_seed = manual_seed_all = _nothing
    set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = _nothing


torch.manual_seed(0)
set_platform(Cpu())

from verl.utils import distributed  # noqa: E402
from verl.workers.engine.base import EngineRegistry  # noqa: E402
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead  # noqa: E402


def start_group(timeout_second: int = 0) -> tuple[int, int, int]:
    """Start gloo alone: `cpu:gloo,cpu:gloo`, as verl writes it, is no backend."""
    torch.distributed.init_process_group("gloo")
    return tuple(int(os.environ[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))


distributed.initialize_global_process_group = start_group
EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cpu"])(
    FSDPEngineWithLMHead
)
