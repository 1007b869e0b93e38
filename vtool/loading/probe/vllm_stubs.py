"""Replacements for parts of vLLM that cannot be made on a CPU; `stubs.STUBS` says when and why.

None of them runs while weights are loaded; the class's own code is not touched.
"""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

SPECIAL_TOKENS = {
    f"{name}_token": f"<|{name}|>"
    for name in [
        "image",
        "video",
        "audio",
        "boi",
        "eoi",
        "boa",
        "eoa",
        "eol",
        "eof",
        "image_wrapper",
    ]
}


def _wrap_attention_choice(choose: Callable[..., Any]) -> Any:
    """Put `choose(vllm's own choice, *args, **kwargs)` in the place of vLLM's own choice."""
    from vllm.platforms.cpu import CpuPlatform

    own = CpuPlatform.get_attn_backend_cls.__func__
    CpuPlatform.get_attn_backend_cls = classmethod(
        lambda cls, *args, **kwargs: choose(partial(own, cls), *args, **kwargs)
    )
    return CpuPlatform


def replace_sparse_attention() -> None:
    """Choose dense attention where a layer asks for sparse attention."""

    def is_sparse(value: Any) -> bool:
        return getattr(value, "use_sparse", False) and hasattr(value, "_replace")

    def dense(value: Any) -> Any:
        return value._replace(use_sparse=False) if is_sparse(value) else value

    def choose(own: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = own(*map(dense, args), **{name: dense(value) for name, value in kwargs.items()})
        # the layer hands over a sparse one's arguments, which latent attention for AMX refuses
        if any(map(is_sparse, (*args, *kwargs.values()))) and "amx_mla" in str(chosen):
            backends: Any = importlib.import_module("vllm.v1.attention.backends.registry")
            return backends.AttentionBackendEnum.CPU_MLA.get_path()
        return chosen

    _wrap_attention_choice(choose)


def replace_latent_attention() -> None:
    """Choose Triton's latent attention, which is made without being compiled."""

    def choose(own: Any, *args: Any, **kwargs: Any) -> Any:
        if any(getattr(value, "use_mla", False) for value in (*args, *kwargs.values())):
            return "vllm.v1.attention.backends.mla.triton_mla.TritonMLABackend"
        return own(*args, **kwargs)

    platform = _wrap_attention_choice(choose)
    platform.num_compute_units = classmethod(lambda cls, *args, **kwargs: 1)
    attention: Any = importlib.import_module("vllm.model_executor.layers.attention.mla_attention")
    attention.flash_attn_varlen_func = lambda: None


def replace_compiled_kernel(name: str) -> None:
    """Give layers a kernel to hold that raises when it is called."""

    def absent(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"there is no kernel {name}")

    setattr(torch.ops._C, name, absent)


def replace_absent_class(name: str, module: str) -> None:
    """Put an empty module where the installed transformers no longer has a class."""

    class Empty(torch.nn.Module):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__()

    setattr(importlib.import_module(module), name, Empty)


def _absent_attribute(owner: Any, name: str) -> Any:
    """Return `_Absent`, whatever is asked for, except for names that Python itself asks for."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent


class _AbsentType(type):
    """The type of `_Absent`: its attributes are `_Absent`, and calling it gives a zero.

    As a decorator it leaves the function as it is; classes that inherit from `_Absent` can be made.
    """

    __getattr__ = _absent_attribute

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return torch.zeros(1) if cls is _Absent else type.__call__(cls)


class _Absent(metaclass=_AbsentType):
    """A stand-in for any function or class of a package that is not installed."""


class _EmptyPackage(ModuleType):
    """A package in which every name is `_Absent`."""

    __getattr__ = _absent_attribute


class _EmptyFinder:
    """Finds an `_EmptyPackage` for a package and everything below it."""

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


def install_empty_package(name: str) -> None:
    """Make a package importable, with stand-ins for all that is imported from it."""
    for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
        del sys.modules[loaded]
    sys.meta_path.insert(0, _EmptyFinder(name))


def replace_absent(name: str, module: str) -> None:
    """Put a stand-in where a module lacks a function or a class."""
    setattr(importlib.import_module(module), name, _Absent)


def replace_vision_attention() -> None:
    """Say that the platform has every attention for images, flash attention first."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    CpuPlatform.get_vit_attn_backend = classmethod(
        lambda cls, *args, **kwargs: AttentionBackendEnum.FLASH_ATTN
    )
    CpuPlatform.get_supported_vit_attn_backends = classmethod(
        lambda cls: list(AttentionBackendEnum)
    )


def choose_second_runner() -> None:
    """Choose the second model runner, as the exception asks."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"


def drop_attention_argument(name: str) -> None:
    """Drop an argument that attention for CPUs does not know."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    original = CPUAttentionBackendImpl.__init__
    CPUAttentionBackendImpl.__init__ = lambda self, *args, **kwargs: original(
        self, *args, **{key: value for key, value in kwargs.items() if key != name}
    )


def allow_attention_feature(name: str) -> None:
    """Say that attention for CPUs supports the feature `use_X`."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    feature = f"supports_{name.removeprefix('use_')}"
    setattr(CPUAttentionBackend, feature, classmethod(lambda cls: True))


def allow_experts_without_gate() -> None:
    """Say that the platform is like CUDA, where the layer of experts asks."""
    from vllm.model_executor.layers.fused_moe import config, layer

    for module in (config, layer):  # which of them asks depends on the version
        if hasattr(module, "current_platform"):
            module.current_platform = _LikeCuda(module.current_platform)


class _LikeCuda:
    """A platform that says it is like CUDA, and else what another says."""

    def __init__(self, platform: Any) -> None:
        self.platform = platform

    def is_cuda_alike(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.platform, name)


def allow_expert_kernels() -> None:
    """Say that every kernel of experts can be used."""
    import vllm.model_executor.layers.fused_moe.modular_kernel as module

    for value in vars(module).values():
        if isinstance(value, type) and "is_supported_config" in vars(value):
            supported: Any = staticmethod(lambda *args, **kwargs: (True, None))
            setattr(value, "is_supported_config", supported)  # noqa: B010


def rename_config_for_checks() -> None:
    """Give our config the class name that vLLM's check of it asks for, before the check runs."""
    import vllm.model_executor.models.config as module

    for check in set(module.MODELS_CONFIG_MAP.values()):
        class_names = re.findall(r'__name__ == "(\w+)"', inspect.getsource(check))
        for method in ("verify_and_update_config", "verify_and_update_model_config"):
            if method in vars(check):
                setattr(check, method, staticmethod(_renaming(getattr(check, method), class_names)))


def _renaming(check: Callable[[Any], None], class_names: Sequence[str]) -> Callable[[Any], None]:
    def run(config: Any) -> None:
        if class_names:
            type(getattr(config, "model_config", config).hf_config).__name__ = class_names[0]
        with suppress(AssertionError):
            check(config)

    return run


def replace_triton_allocator() -> None:
    """Give the stand-in for triton the function that sets its allocator."""
    import vllm.triton_utils.allocation as module

    module.triton.set_allocator = lambda function: None


def provide_tokenizer(folder: Path, configs: Sequence[Any]) -> None:
    """Save a processor into the folder, and let configs that were read from it use it."""
    save_processor(folder)
    for config in configs:
        config.model_config.skip_tokenizer_init = False


def save_processor(folder: Path) -> None:
    """Save a tokenizer and Qwen's image and video processors into the folder of a tiny model."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessor, Qwen3VLVideoProcessor

    qwen = (f"<|{name}|>" for name in ("image_pad", "video_pad", "vision_start", "vision_end"))
    words = ["[UNK]", *qwen, "<image>", *SPECIAL_TOKENS.values()]
    vocabulary = {word: number for number, word in enumerate(words)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")),
        unk_token="[UNK]",
        extra_special_tokens=SPECIAL_TOKENS,
    ).save_pretrained(folder)
    Qwen2VLImageProcessor().save_pretrained(folder)
    Qwen3VLVideoProcessor().save_pretrained(folder)
