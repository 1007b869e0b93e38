"""vLLM's classes at tiny size, and those that will load a folder, without its engine, on a CPU.

Where vLLM is stubbed: the table of replacements is `stubs.STUBS`.
"""

import importlib
import os
import sys
from collections.abc import Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from . import vllm_folder, vllm_tiny
from .errors import NotRun
from .facts import SubjectFacts
from .host import Host, OnProgress
from .shrink import HEADS, HIDDEN, INTERMEDIATE, LAYERS
from .subject import Subject

IMPORTED_BY_MOST = (
    "vllm.model_executor.kernels.linear",
    "vllm.model_executor.layers.rotary_embedding",
    "vllm.model_executor.layers.fused_moe",
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    "vllm.distributed.ec_transfer.ec_transfer_state",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.attention.backends.cpu_attn",
    "transformers.modeling_layers",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.processing_auto",
)

_PLAIN = (bool, int, float, str, type(None), torch.dtype)
"""Types of a router's attributes that distinguish routers of one class."""


class VllmHost(Host):
    """vLLM: a name of its registry, or the path of a checkpoint folder."""

    name = "vllm"
    environment: ClassVar = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V1": "1",
        "VLLM_KIMI_K3_GEMM_AR": "0",  # a kernel for GPUs, asked for by default
    }

    _library: Any = None
    """Operators that torchvision would define; they last as long as this does."""

    def import_framework(self) -> str:
        """Import vLLM's registry and backends for transformers' classes; return the version."""
        self._import_with_cuda_builds()
        import vllm
        import vllm.model_executor.model_loader.utils
        from vllm.model_executor.models import registry
        from vllm.transformers_utils.configs import radio

        # vLLM inspects each class in a process of its own, which takes seconds; here every class
        # has one already.
        lazy: Any = registry._LazyRegisteredModel
        lazy.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(
            self.load_model_cls()
        )
        import vllm.model_executor.models.transformers

        # for each object that is made, a tenth of all time; `vllm_paths` does it where it reloads
        utils: Any = vllm.model_executor.model_loader.utils
        utils.record_metadata_for_reloading = lambda model: None

        sizes = radio.VIT_TIMM_DIM_BY_NAME  # sizes that vLLM has by name, and no config says
        sizes.update(dict.fromkeys(sizes, (HIDDEN, LAYERS, HEADS, INTERMEDIATE)))
        return str(vllm.__version__)

    def warm_up(self) -> None:
        """Import what most classes import when they are made."""
        for module in IMPORTED_BY_MOST:
            with suppress(Exception):  # each class that needs it will say so itself
                importlib.import_module(module)
        with suppress(Exception):  # each config of a quantized class asks for all methods' modules
            quantization = importlib.import_module("vllm.model_executor.layers.quantization")
            quantization.get_quantization_config("compressed-tensors")
        vllm_tiny.words_of(importlib.import_module("transformers"))
        with suppress(ImportError, AttributeError):  # vLLM before 0.32 does not trace routers
            _match_each_router_once()
        super().warm_up()

    def list_subjects(self) -> list[str]:
        """Return every architecture of the registry."""
        from vllm.model_executor.models.registry import ModelRegistry

        return list(ModelRegistry.models)

    def module_of(self, name: str) -> str | None:
        """Return the module that the registry names for an architecture; see `Host`."""
        from vllm.model_executor.models.registry import ModelRegistry

        entry: Any = ModelRegistry.models[name]
        return getattr(entry, "module_name", None) or getattr(
            getattr(entry, "model_cls", None), "__module__", None
        )

    def make_subject(self, name: str, folder: Path, progress: OnProgress) -> Subject:
        """Make the class of a folder, else an architecture at tiny size; see `Host`."""
        if os.path.isabs(name):
            return vllm_folder.make_subject(Path(name), folder, progress)
        if name not in self.list_subjects():
            raise NotRun(f"vLLM has registered no `{name}`")
        return vllm_tiny.TinyArchitecture(name, folder, progress).make_subject()

    def judge_by_headers(
        self, name: str, folder: Path, rules: Sequence[str], memory: int, progress: OnProgress
    ) -> SubjectFacts:
        """Judge the class that a folder's config.json names; see `Host`."""
        return vllm_folder.judge_by_headers(Path(name), folder, rules, memory, progress)

    def _import_with_cuda_builds(self) -> None:
        """Make torchvision, torchaudio and torchcodec importable, or absent.

        They are often builds for CUDA, whose libraries do not load here. None is called.
        """
        for absent in ("torchaudio", "torchcodec"):
            sys.modules.setdefault(absent, None)  # type: ignore[arg-type]
        try:
            import torchvision  # noqa: F401
        except Exception:
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            library: Any = torch.library
            self._library = library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                given = "Tensor dets, Tensor scores, float iou_threshold"
                self._library.define(f"{name}({given}) -> Tensor")


def _match_each_router_once() -> None:
    """Have vLLM's Transformers backend trace routers that are alike once, not at every layer.

    It caches what it finds in other modules by their class, and not this: of a class with experts,
    a trace for each layer of each object was nine tenths of all time (vLLM 0.32). A router with
    more than plain attributes and tensors is traced each time.
    """
    from vllm.model_executor.models.transformers.fusers.moe import MoEBlockFuser

    match: Any = MoEBlockFuser._match_router
    known: dict[Hashable, Any] = {}
    of_torch = nn.Module().__dict__.keys() - {"training"}

    def once(gate: nn.Module) -> Any:
        own = [(name, value) for name, value in vars(gate).items() if name not in of_torch]
        if any(gate.children()) or not all(isinstance(value, _PLAIN) for _, value in own):
            return match(gate)
        tensors = [*gate.named_parameters(), *gate.named_buffers()]
        key = (type(gate), tuple(own), tuple((name, tensor.shape) for name, tensor in tensors))
        if key not in known:
            known[key] = match(gate)
        return known[key]

    MoEBlockFuser._match_router = staticmethod(once)
