"""Data parallel training: every rank has the whole model, and gradients are summed over ranks.

With one rank it is the bare model. With more, torch's DistributedDataParallel overlaps the
reduction with the last backward.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from vtool.config.readback import Observed, observe_values
from vtool.engines import common
from vtool.engines.contract import B, EngineInputs
from vtool.engines.spans import Span, null_span
from vtool.models import observe_model
from vtool.releases import without_buffer_sync


class DdpEngine(common.TorchEngine):
    """See `vtool.engines.contract.Engine`."""

    def __init__(self, inputs: EngineInputs) -> None:
        ranks = inputs.ranks
        common.materialize(inputs.module, inputs.weights, ranks.device)
        super().__init__(inputs.module.to(ranks.device), ranks)
        self.parameters = common.trainable(self.module)
        self.compute_dtype = inputs.compute_dtype
        self.optimizer = inputs.build_optimizer(self.module)
        self.parallel: DistributedDataParallel | None = None
        if ranks.world > 1:
            # rotary tables: the same on every rank, and never written
            alone: Any = without_buffer_sync(DistributedDataParallel)
            self.parallel = DistributedDataParallel(
                self.module,
                device_ids=[ranks.device] if ranks.device.type != "cpu" else None,
                bucket_cap_mb=inputs.settings.bucket_cap_mb,
                gradient_as_bucket_view=inputs.settings.gradient_as_bucket_view,
                **alone,
            )

    def forward_backward(
        self,
        batches: Sequence[B],
        nll: Callable[[Callable[..., Any], B], Tensor],
        supervised: int,
        *,
        every_parameter: bool,
        span: Span = null_span,
    ) -> Tensor:
        # DDP averages over ranks, and the sum is wanted: the loss is multiplied by the number of
        # ranks.
        scale = self.ranks.world / supervised
        # DDP waits for a gradient of every parameter. Where some get none, it is kept out, and what
        # there is is summed below.
        overlapped = self.parallel is not None and every_parameter
        sums = []
        for place, batch in enumerate(batches):
            last = place == len(batches) - 1
            with (
                nullcontext()
                if self.parallel is None or (last and overlapped)
                else self.parallel.no_sync()
            ):
                with span("forward"), self.autocast():
                    loss = nll(self.parallel or self.module, batch)
                with span("backward"):
                    common.backward(loss * scale)
            sums.append(loss.detach())
        if self.parallel is not None and not overlapped:
            with span("backward"):
                for parameter in self.parameters:
                    if parameter.grad is not None:
                        dist.all_reduce(parameter.grad)
                        parameter.grad /= self.ranks.world
        return torch.stack(sums)

    def clip_gradient(self, largest: float | None) -> Tensor:
        norm = get_total_norm(
            [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        )
        return common.clip(self.parameters, norm, largest)

    def autocast(self) -> AbstractContextManager[Any]:
        wanted = self.compute_dtype == torch.bfloat16
        return torch.autocast(self.ranks.device.type, torch.bfloat16) if wanted else nullcontext()

    def observe(self, component: Callable[[str], str]) -> Iterator[Observed]:
        if self.parallel is not None:
            yield from observe_ddp(self.parallel)
        elif self.ranks.world == 1:
            yield Observed("engine.kind", "ddp", "the bare model of the only process")
        else:
            yield Observed("engine.kind", "none", "the bare model of one of several processes")
        with self.autocast():
            device = self.ranks.device.type
            computed = (
                torch.get_autocast_dtype(device)
                if torch.is_autocast_enabled(device)
                else next(self.module.parameters()).dtype
            )
        yield Observed(
            "model.dtype", observe_model.dtype_name(computed), "the autocast of the forward pass"
        )
        yield from observe_model.observe_layers(self.module)
        yield from observe_model.observe_adapters(self.module, component)


def observe_ddp(parallel: DistributedDataParallel) -> Iterator[Observed]:
    """Yield the settings of engine=ddp as torch's DistributedDataParallel has them.

    It is what its reducer was built with.
    """
    built = parallel._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    values = {
        "engine.kind": "ddp",
        "engine.bucket_cap_mb": built["bucket_cap_bytes"] / 2**20,
        "engine.gradient_as_bucket_view": bool(built["gradient_as_bucket_view"]),
    }
    return observe_values(values, "torch's DistributedDataParallel")
