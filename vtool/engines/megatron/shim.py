"""Megatron-core 0.16.1 on a CPU.

Megatron-core asks for CUDA by name, also where any device would do. Inside `on_cpu`, and nowhere
else, it gets the CPU instead. The run's device decides, not the machine: a GPU that a run does not
use changes nothing. It replaces:

- `torch.cuda.current_device()`, used as the device of weights and buffers: the CPU;
- `torch.cuda.synchronize()`: nothing, the CPU is never behind;
- `device="cuda"` of any torch function, such as that of the causal mask (`transformer/utils.py`):
  `"cpu"`;
- `pin_memory=True` of any torch function: nothing, there is no GPU to copy to
  (`models/common/embeddings/rope_utils.py`);
- `Tensor.cuda()`: the tensor itself;
- `Tensor.type()` of a tensor: `torch.FloatTensor` becomes `torch.cuda.FloatTensor`. The optimizers
  look for that text, to distinguish bfloat16 weights, which need a float32 copy, from float32 ones
  (`optimizer/optimizer.py`, `optimizer/distrib_optimizer.py`); the dtype is kept;
- the tracker of random states, by the one that megatron-core has for inference, which forks no CUDA
  generator. Dropout must be 0.

No number that is computed passes through here. Transformer Engine, the fused kernels and NCCL are
what it cannot stand in for.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


@contextmanager
def on_cpu(device: torch.device) -> Iterator[None]:
    """Give megatron-core the CPU where it asks for CUDA, if the run's `device` is the CPU.

    May be nested.
    """
    if device.type != "cpu":
        yield
        return
    before = torch.cuda.current_device, torch.cuda.synchronize
    torch.cuda.current_device, torch.cuda.synchronize = (lambda: _CPU), (lambda device=None: None)  # type: ignore[assignment,return-value]
    try:
        with _CudaToCpu():
            yield
    finally:
        torch.cuda.current_device, torch.cuda.synchronize = before


def silence() -> None:
    """Silence megatron-core's warnings of missing kernels and of renamed torch functions."""
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    # The distributed optimizer asks its shares for a gradient; through this module, so that the
    # line above does not meet it.
    warnings.filterwarnings(
        "ignore", message=r"The \.grad attribute of a Tensor that is not a leaf"
    )
    warnings.filterwarnings(
        "ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger"
    )


def seed_megatron(seed: int, device: torch.device) -> None:
    """Set up megatron-core's random states; its model parallel groups must be there.

    Args:
        seed: of the generators that differ from one tensor parallel rank to the next.
        device: the run's.
    """
    from megatron.core.tensor_parallel.random import (
        initialize_rng_tracker,
        model_parallel_cuda_manual_seed,
    )

    if device.type != "cpu":
        model_parallel_cuda_manual_seed(seed)
        return
    initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)
    with on_cpu(device):
        model_parallel_cuda_manual_seed(seed, inference_rng_tracker=True, force_reset_rng=True)


class _CudaToCpu(TorchFunctionMode):
    """Replaces CUDA by the CPU in calls of torch functions."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = "cpu"
        given.pop("pin_memory", None)
        if func is torch.Tensor.cuda:
            return args[0]
        result = func(*args, **given)
        if (
            func is torch.Tensor.type
            and len(args) == 1
            and not given
            and not result.startswith("torch.cuda.")
        ):
            return result.replace("torch.", "torch.cuda.", 1)
        return result
