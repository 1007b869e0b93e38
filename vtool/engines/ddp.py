"""Data parallel training: every rank has the whole model, and gradients are summed over ranks.

With one rank it is the bare model. With more, torch's DistributedDataParallel overlaps the reduction with the last backward.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from vtool.config.schema import Ddp as DdpSettings
from vtool.engines.ranks import Ranks

B = TypeVar("B")


class Ddp:
    """See `vtool.engines.contract.Engine`."""

    def __init__(
        self,
        module: nn.Module,
        settings: DdpSettings,
        ranks: Ranks,
        compute_dtype: torch.dtype,
        build_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    ) -> None:
        self.module = module.to(ranks.device)
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self.ranks = ranks
        self.compute_dtype = compute_dtype
        self.optimizer = build_optimizer(self.module)
        self.parallel: DistributedDataParallel | None = None
        if ranks.world > 1:
            self.parallel = DistributedDataParallel(
                self.module,
                device_ids=[ranks.device] if ranks.device.type != "cpu" else None,
                bucket_cap_mb=settings.bucket_cap_mb,
                gradient_as_bucket_view=settings.gradient_as_bucket_view,
                forward_sync_buffers=False,  # rotary tables: the same on every rank, and never written
            )

    def forward_backward(
        self, batches: Sequence[B], nll: Callable[[Callable[..., Any], B], Tensor], supervised: int, *, every_parameter: bool
    ) -> list[float]:
        # DDP averages over ranks, and the sum is wanted: the loss is multiplied by the number of ranks.
        scale = self.ranks.world / supervised
        # DDP waits for a gradient of every parameter. Where some get none, it is kept out, and what there is is summed below.
        overlapped = self.parallel is not None and every_parameter
        sums = []
        for place, batch in enumerate(batches):
            last = place == len(batches) - 1
            with nullcontext() if self.parallel is None or (last and overlapped) else self.parallel.no_sync():
                with self.autocast():
                    loss = nll(self.parallel or self.module, batch)
                torch.autograd.backward(loss * scale)
            sums.append(loss.detach())
        if self.parallel is not None and not overlapped:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= self.ranks.world
        return torch.stack(sums).tolist()  # one wait for the device, after everything has been queued

    def clip_gradient(self, largest: float | None) -> float:
        parameters = [parameter for parameter in self.parameters if parameter.grad is not None]
        norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        if largest is not None and math.isfinite(norm.item()):
            clip_grads_with_norm_(parameters, largest, norm)
        return norm.item()

    def optimizer_step(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def autocast(self) -> AbstractContextManager[Any]:
        wanted = self.compute_dtype == torch.bfloat16
        return torch.autocast(self.ranks.device.type, torch.bfloat16) if wanted else nullcontext()

    def model_state(self) -> dict[str, Tensor]:
        state = {name: parameter.detach() for name, parameter in self.module.named_parameters()}
        kept = self.module.state_dict().keys()  # without the buffers that are computed, not learnt
        return state | {name: buffer for name, buffer in self.module.named_buffers() if name in kept}

    def optimizer_state(self) -> dict[str, Tensor]:
        return {
            f"{name}.{entry}": value
            for name, parameter in self.module.named_parameters()
            for entry, value in self.optimizer.state.get(parameter, {}).items()
        }

    def load_state(self, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        own = self.model_state()
        assert own.keys() == model.keys(), "a checkpoint of the same config has the same tensors"
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(model[name])
        entries: dict[str, dict[str, Tensor]] = {}
        for key, value in optimizer.items():
            name, _, entry = key.rpartition(".")
            entries.setdefault(name, {})[entry] = value
        parameters = dict(self.module.named_parameters())
        for name, state in entries.items():
            parameter = parameters[name]
            self.optimizer.state[parameter] = {entry: value.to(parameter.device).clone() for entry, value in state.items()}
