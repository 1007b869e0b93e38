"""Stands for SGLang's kernels for GPUs, which its earlier releases import on every machine."""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_KERNELS = "sgl_kernel"


class _Kernel:
    """Stands for a part of a package that is not installed: it has parts, and cannot be called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "_Kernel":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self._name} is not installed")


class _Kernels(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(_Kernel(self.__name__), name)


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_one = fullname.partition(".")[0] == _KERNELS
        return ModuleSpec(fullname, self, is_package=True) if is_one else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Kernels(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it was created."""


def stand_in_for_kernels() -> None:
    """Let releases before 0.5.11 be imported, which import their kernels whatever the machine has.

    What calls one of them fails. Where the package is installed, nothing is changed.
    """
    is_late = importlib.util.find_spec("sglang.srt.utils.hf_transformers") is not None
    if not is_late and importlib.util.find_spec(_KERNELS) is None:
        sys.meta_path.append(_Finder())
