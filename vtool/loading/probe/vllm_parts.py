"""Parts of vLLM that cannot be made on a CPU. None of them runs while weights are loaded; the class's own code is not touched."""

from typing import Any

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


def _moe_without_gate() -> None:
    import vllm.model_executor.layers.fused_moe.config as config
    import vllm.model_executor.layers.fused_moe.layer as layer

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
    import vllm.model_executor.models.config as module

    module.MODELS_CONFIG_MAP.clear()


def _triton_allocator() -> None:
    import vllm.triton_utils.allocation as module

    module.triton.set_allocator = lambda function: None


def shrink_tables() -> None:
    """Sizes that vLLM has by name, and no config says."""
    import vllm.transformers_utils.configs.radio as module

    table = module.VIT_TIMM_DIM_BY_NAME
    table.update(dict.fromkeys(table, (HIDDEN, LAYERS, HEADS, INTERMEDIATE)))


STUBS: tuple[Stub, ...] = (
    ("vLLM's check of the config's class", r"Assertion failed", _config_checks),
    ("sparse attention", r"Sparse Attention is not supported on CPU", _sparse_attention),
    ("kernels of experts without a gate", r"is_act_and_mul=False is supported only", _moe_without_gate),
    ("kernels of experts", r"No \w+ MoE backend supports", _expert_kernels),
    ("triton's allocator", r"has no attribute 'set_allocator'", _triton_allocator),
)
