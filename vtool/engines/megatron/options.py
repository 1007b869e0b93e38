"""Everything that the modules of one megatron engine are built with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vtool.config.schema import Optim
from vtool.config.schema.megatron import Megatron
from vtool.engines.megatron.groups import Groups


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Settings, process groups and device of an engine, passed down while it is built."""

    settings: Megatron
    optim: Optim
    groups: Groups
    ddp_config: Any
    """Megatron-core's `DistributedDataParallelConfig`."""
    device: torch.device
    compute_dtype: torch.dtype
    component: Callable[[str], str]
    """Given a parameter's name in files, which of `optim.groups` it is of."""
    checkpointing: bool
    """Compute activations of the language model's layers again in the backward pass."""
