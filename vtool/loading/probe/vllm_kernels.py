"""Lets layers of quantized weights choose a kernel that this CPU does not have, for a while.

Nothing is multiplied: what is made so is loaded, and thrown away.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def any_kernel() -> Iterator[None]:
    """Have layers of quantized weights take a kernel for CPUs, whatever it asks of sizes or a CPU.

    A constructor chooses the kernel; the parameters, and how they are loaded, are the format's.
    """
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExperts

    def or_on_cpu(own: Callable[..., Any]) -> Callable[..., Any]:
        return lambda kernel, *args, **kwargs: (
            (True, None) if kernel.__name__.startswith("CPU") else own(kernel, *args, **kwargs)
        )

    changes: Sequence[tuple[Any, str, Any]] = (
        (
            linear,
            "is_supported_and_can_implement_kernel",
            or_on_cpu(linear.is_supported_and_can_implement_kernel),
        ),
        (CPUWNA16LinearKernel, "can_implement", classmethod(lambda *_: (True, None))),
        (
            FusedMoEExperts,
            "is_supported_config",
            staticmethod(or_on_cpu(FusedMoEExperts.is_supported_config)),
        ),
    )
    before = [vars(owner)[name] for owner, name, _ in changes]
    try:
        for owner, name, changed in changes:
            setattr(owner, name, changed)
        yield
    finally:
        for (owner, name, _), own in zip(changes, before, strict=True):
            setattr(owner, name, own)
