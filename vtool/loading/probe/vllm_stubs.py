"""Parts of vLLM that cannot be made on a CPU.

None of them runs while weights are loaded; the class's own code is not touched.
"""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from .shrink import HEADS, HIDDEN, INTERMEDIATE, LAYERS, shrink
from .stubs import Stub


def _sparse_attention() -> None:
    from vllm.platforms.cpu import CpuPlatform

    chosen = CpuPlatform.get_attn_backend_cls.__func__

    def dense(cls: Any, *arguments: Any, **more: Any) -> Any:
        return chosen(
            cls,
            *map(_not_sparse, arguments),
            **{name: _not_sparse(value) for name, value in more.items()},
        )

    CpuPlatform.get_attn_backend_cls = classmethod(dense)


def _not_sparse(value: Any) -> Any:
    return (
        value._replace(use_sparse=False)
        if getattr(value, "use_sparse", False) and hasattr(value, "_replace")
        else value
    )


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
    """A kernel that this build of vLLM lacks:

    layers take hold of it when they are made, and call it when they run.
    """

    def absent(*arguments: Any, **more: Any) -> Any:
        raise NotImplementedError(f"there is no kernel {name}")

    setattr(torch.ops._C, name, absent)


def _absent_class(name: str, module: str) -> None:
    """A class that the installed transformers no longer has."""

    class Empty(torch.nn.Module):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__()

    setattr(importlib.import_module(module), name, Empty)


class _AbsentName(type):
    """The class of whatever is asked of a package that is not there.

    To inherit from, to decorate with; called, it gives a zero.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent

    def __call__(cls, *arguments: Any, **more: Any) -> Any:
        if len(arguments) == 1 and not more and callable(arguments[0]):
            return arguments[0]
        return torch.zeros(1) if cls is _Absent else type.__call__(cls)


class _Absent(metaclass=_AbsentName):
    pass


class _EmptyPackage(ModuleType):
    """A package that is there to be imported, whatever is asked of it, and whose functions are not
    there.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent


class _EmptyFinder:
    """Finds an empty package below those that are to be empty."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == self.package or name.startswith(f"{self.package}."):
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _EmptyPackage(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = "0"  # type: ignore[attr-defined]


def _empty_package(name: str) -> None:
    """What reads sound, or multiplies on a GPU:

    imported by a class's module, and not called while weights are loaded.
    """
    for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
        del sys.modules[loaded]
    sys.meta_path.insert(0, _EmptyFinder(name))


def _absent_function(name: str, module: str) -> None:
    setattr(importlib.import_module(module), name, _Absent)


def _of_a_gpu(name: str) -> None:
    setattr(torch.cuda, name, _Absent)


def _vision_attention() -> None:
    """Flash attention of images, which only GPUs have."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    CpuPlatform.get_vit_attn_backend = classmethod(
        lambda cls, *arguments, **more: AttentionBackendEnum.FLASH_ATTN
    )
    CpuPlatform.get_supported_vit_attn_backends = classmethod(
        lambda cls: list(AttentionBackendEnum)
    )


def _second_runner() -> None:
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"


def _argument_of_attention(name: str) -> None:
    """An argument that this build's attention does not know;

    it says what is computed, not what is loaded.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    made = CPUAttentionBackendImpl.__init__

    def without(self: Any, *arguments: Any, **more: Any) -> None:
        made(self, *arguments, **{key: value for key, value in more.items() if key != name})

    CPUAttentionBackendImpl.__init__ = without


def _supported_by_attention(name: str) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    setattr(
        CPUAttentionBackend, f"supports_{name.removeprefix('use_')}", classmethod(lambda cls: True)
    )


def _moe_without_gate() -> None:
    from vllm.model_executor.layers.fused_moe import config, layer

    for module in (config, layer):  # where it is asked depends on the version
        if hasattr(module, "current_platform"):
            module.current_platform = _answering(
                module.current_platform, is_cuda_alike=lambda: True
            )


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


def shrink_constants(module: ModuleType) -> None:
    """Configs that a module of models writes down whole, for a part of fixed size."""
    from transformers import PretrainedConfig

    for value in vars(module).values():
        if isinstance(value, PretrainedConfig):
            shrink(value)


STUBS: tuple[Stub, ...] = (
    (
        "transformers' {0}",
        r"cannot import name '(\w+)' from '(transformers\.[\w.]+)'",
        _absent_class,
    ),
    ("the kernel {0}", r"'_OpNamespace' '_C' object has no attribute '(\w+)'", _compiled_kernels),
    ("latent attention", r"MLA is not supported on CPU", _latent_attention),
    ("vLLM's check of the config's class", r"Assertion failed", _config_checks),
    ("sparse attention", r"Sparse Attention is not supported on CPU", _sparse_attention),
    (
        "kernels of experts without a gate",
        r"is_act_and_mul=False is supported only",
        _moe_without_gate,
    ),
    ("kernels of experts", r"No \w+ MoE backend supports", _expert_kernels),
    (
        "the package {0}",
        r"No module named '(torchaudio|cutlass|cuda|quack)(?=[.'])",
        _empty_package,
    ),
    ("the package {0}", r"(vllm\.vllm_flash_attn) requires the CUDA", _empty_package),
    (
        "attention's argument {0}",
        r"CPUAttentionBackendImpl.__init__\(\) got an unexpected keyword argument '(\w+)'",
        _argument_of_attention,
    ),
    (
        "attention's support of {0}",
        r"(use_\w+) is not supported by backend CPU_ATTN",
        _supported_by_attention,
    ),
    (
        "{1}'s {0}",
        r"cannot import name '(\w+)' from '(vllm\.v1\.attention\.[\w.]+)'",
        _absent_function,
    ),
    ("a GPU's {0}", r"(?:torch\.cuda\.|dummy base class )(Stream|Event)", _of_a_gpu),
    (
        "attention of the vision tower",
        r"(?:does not support|Backend) AttentionBackendEnum",
        _vision_attention,
    ),
    (
        "the second model runner",
        r"Model Runner V1 does not support|requires the V2 model runner",
        _second_runner,
    ),
    ("triton's allocator", r"has no attribute 'set_allocator'", _triton_allocator),
)
