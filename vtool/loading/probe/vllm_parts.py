"""Parts of vLLM that cannot be made on a CPU. None of them runs while weights are loaded; the class's own code is not touched."""

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from .mend import Stub
from .shrink import HEADS, HIDDEN, INTERMEDIATE, LAYERS


def _sparse_attention() -> None:
    from vllm.platforms.cpu import CpuPlatform

    chosen = CpuPlatform.get_attn_backend_cls.__func__

    def dense(cls: Any, *arguments: Any, **more: Any) -> Any:
        return chosen(cls, *map(_not_sparse, arguments), **{name: _not_sparse(value) for name, value in more.items()})

    CpuPlatform.get_attn_backend_cls = classmethod(dense)


def _not_sparse(value: Any) -> Any:
    return value._replace(use_sparse=False) if getattr(value, "use_sparse", False) and hasattr(value, "_replace") else value


def _latent_attention() -> None:
    """vLLM 0.20 has none for a CPU; the one for Triton is made without being compiled."""
    from vllm.platforms.cpu import CpuPlatform

    chosen = CpuPlatform.get_attn_backend_cls.__func__

    def latent(cls: Any, *arguments: Any, **more: Any) -> Any:
        if any(getattr(value, "use_mla", False) for value in (*arguments, *more.values())):
            return "vllm.v1.attention.backends.mla.triton_mla.TritonMLABackend"
        return chosen(cls, *arguments, **more)

    CpuPlatform.get_attn_backend_cls = classmethod(latent)
    CpuPlatform.num_compute_units = classmethod(lambda cls, *arguments, **more: 1)
    attention: Any = importlib.import_module("vllm.model_executor.layers.attention.mla_attention")
    attention.flash_attn_varlen_func = lambda: None


def _compiled_kernels(name: str) -> None:
    """A kernel that this build of vLLM lacks: layers take hold of it when they are made, and call it when they run."""

    def absent(*arguments: Any, **more: Any) -> Any:
        raise NotImplementedError(f"there is no kernel {name}")

    setattr(torch.ops._C, name, absent)


def _absent_class(name: str, module: str) -> None:
    """A class that the installed transformers no longer has."""

    class Empty(torch.nn.Module):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__()

    setattr(importlib.import_module(module), name, Empty)


def _moe_without_gate() -> None:
    from vllm.model_executor.layers.fused_moe import config, layer

    for module in (config, layer):  # where it is asked depends on the version
        if hasattr(module, "current_platform"):
            module.current_platform = _answering(module.current_platform, is_cuda_alike=lambda: True)


def _answering(platform: Any, **answers: Any) -> Any:
    class Platform:
        def __getattr__(self, name: str) -> Any:
            return answers.get(name) or getattr(platform, name)

    return Platform()


def _expert_kernels() -> None:
    import vllm.model_executor.layers.fused_moe.modular_kernel as module

    for value in vars(module).values():
        if isinstance(value, type) and "is_supported_config" in vars(value):
            value.is_supported_config = staticmethod(lambda *arguments, **more: (True, None))  # type: ignore[attr-defined]


def _config_checks() -> None:
    """vLLM completes some configs, of classes that only the hub has: ours are given their names."""
    import vllm.model_executor.models.config as module

    for check in set(module.MODELS_CONFIG_MAP.values()):
        asked = re.findall(r'__name__ == "(\w+)"', inspect.getsource(check))
        for method in ("verify_and_update_config", "verify_and_update_model_config"):
            if method in vars(check):
                setattr(check, method, staticmethod(_renaming(getattr(check, method), asked)))


def _renaming(complete: Callable[[Any], None], asked: Sequence[str]) -> Callable[[Any], None]:
    def run(config: Any) -> None:
        found = getattr(config, "model_config", config).hf_config
        if asked:
            type(found).__name__ = asked[0]
        with suppress(AssertionError):
            complete(config)

    return run


def _triton_allocator() -> None:
    import vllm.triton_utils.allocation as module

    module.triton.set_allocator = lambda function: None


def shrink_tables() -> None:
    """Sizes that vLLM has by name, and no config says."""
    import vllm.transformers_utils.configs.radio as module

    table = module.VIT_TIMM_DIM_BY_NAME
    table.update(dict.fromkeys(table, (HIDDEN, LAYERS, HEADS, INTERMEDIATE)))


STUBS: tuple[Stub, ...] = (
    ("transformers' {0}", r"cannot import name '(\w+)' from '(transformers\.[\w.]+)'", _absent_class),
    ("the kernel {0}", r"'_OpNamespace' '_C' object has no attribute '(\w+)'", _compiled_kernels),
    ("latent attention", r"MLA is not supported on CPU", _latent_attention),
    ("vLLM's check of the config's class", r"Assertion failed", _config_checks),
    ("sparse attention", r"Sparse Attention is not supported on CPU", _sparse_attention),
    ("kernels of experts without a gate", r"is_act_and_mul=False is supported only", _moe_without_gate),
    ("kernels of experts", r"No \w+ MoE backend supports", _expert_kernels),
    ("triton's allocator", r"has no attribute 'set_allocator'", _triton_allocator),
)
