"""The engine `megatron`: megatron-core's parallelism, DDP and optimizers.

The parallelism is tensor, sequence, pipeline and data parallel.

Losses are divided by N before the backward pass, so that megatron-core has to add up and nothing
else: with `calculate_per_token_loss` its DDP leaves out the division by the data parallel ranks
that it would make. Its collective makes that division where `ddp_config.average_in_collective` asks
for it; the loss is then multiplied by as much.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vtool.config.readback import Observed
from vtool.config.schema import Optim
from vtool.config.schema.megatron import Megatron as MegatronSettings
from vtool.diagnostics import Diagnostic
from vtool.engines import common
from vtool.engines.contract import (
    B,
    EngineInputs,
    OptimizerGroup,
    Owner,
    to_all_ranks,
    to_rank_zero,
)
from vtool.engines.megatron import observe_megatron as live
from vtool.engines.megatron.build import (
    SourceModel,
    build_language,
    check_model,
    optimize_language,
    optimize_tower,
)
from vtool.engines.megatron.ddp_config import live_ddp_config
from vtool.engines.megatron.groups import start_groups
from vtool.engines.megatron.language_model import replace_language
from vtool.engines.megatron.optimized_module import BuildOptions, OptimizedModule
from vtool.engines.megatron.pipeline import Stage, run_schedule
from vtool.engines.megatron.shim import on_cpu, silence
from vtool.engines.megatron.weights import TOWER_PREFIX
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.engines.spans import Span, null_span
from vtool.models import observe_model
from vtool.models.adapters import Adapter, is_adapter_name


class MegatronEngine:
    """See `vtool.engines.contract.Engine`."""

    def __init__(
        self,
        module: nn.Module,
        settings: MegatronSettings,
        optim: Optim,
        ranks: Ranks,
        compute_dtype: torch.dtype,
        component: Callable[[str], str],
        *,
        checkpointing: int = 0,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Take a transformers model apart, in place: its language model is replaced.

        Frozen parameters stay frozen, and adapters are taken over.

        Args:
            component: given a parameter's name in files, which of `optim.groups` it is of.
            checkpointing: see `vtool.engines.contract.EngineInputs`.
            weights: see `vtool.engines.contract.EngineInputs`.

        Raises:
            SharedFindings: `extra-not-installed`, `megatron-ddp-conflict`,
                `needs-transformer-engine`, `not-built-on-engine`, `parallel-sizes`.
        """
        dtype, device = str(compute_dtype).removeprefix("torch."), ranks.device
        source = SourceModel.of(module, weights or {})
        check_model(source, settings, ranks, dtype)
        silence()
        ddp_config = live_ddp_config(
            settings.wrap_config, settings.ddp_config, dtype=dtype, cpu=device.type == "cpu"
        )
        groups = start_groups(settings.parallel, ranks)
        # the tower's blocks come first, on every stage, and have been seen to
        self.tower_blocks = len(module.model.visual.blocks)  # type: ignore[union-attr,arg-type]
        layers = max(0, checkpointing - self.tower_blocks)
        options = BuildOptions(
            settings, optim, groups, ddp_config, device, compute_dtype, component, layers
        )
        self.ranks, self.groups, self.data = ranks, groups, groups.data
        self.stage = Stage(groups.stages)
        self.size, self.trained = common.sizes(module)
        self._adapted, self._scale = source.adapted, source.scale
        # The ranks that spread a row's tokens over themselves have the whole loss of it each.
        averaged = groups.copies.world if ddp_config.average_in_collective else 1
        self._loss_factor = averaged / settings.parallel.context
        self._norm_group = (
            groups.everyone if settings.wrap_config.use_distributed_optimizer else groups.model
        )

        language = build_language(source, options)
        self.config, self.bridge = language.gpt.config, language.bridge
        self.heeds_masks: bool = language.gpt.heeds_masks
        tower: Any = module.model.visual if self.stage.first else nn.Module()  # type: ignore[union-attr]
        replace_language(module, language.gpt, self.stage)
        common.materialize(tower, source.weights, device, TOWER_PREFIX)
        self.module = module.to(device)
        # not its buffers: frequencies of positions stay float32
        for parameter in tower.parameters():
            parameter.data = parameter.data.to(compute_dtype)
        self._tower_ran = False
        tower.register_forward_pre_hook(self._record_tower)
        with on_cpu(device):
            self.language = optimize_language(language, source, options)
            self.tower = optimize_tower(tower, self.config, options)
            self.both = (self.language, self.tower)
            for one in self.both:
                one.load(source.weights, {})  # again, in the optimizers' precision
        self.optimized = [one for one in self.both if one.ddp is not None]
        """The modules of both of which something is trained."""
        self.active: list[OptimizedModule] = []
        """The modules of both that have gradients in this step."""

    def forward_backward(
        self,
        batches: Sequence[B],
        nll: Callable[[Callable[..., Any], B], Tensor],
        supervised: int,
        *,
        every_parameter: bool,
        span: Span = null_span,
    ) -> Tensor:
        from megatron.core.distributed import finalize_model_grads

        self._tower_ran = False
        with on_cpu(self.ranks.device):
            for one in self.optimized:
                one.zero_grad()
            factor = self._loss_factor / supervised
            sums = self._passes(batches, lambda batch: nll(self.module, batch), factor, span)
            self.active = self.optimized
            if not every_parameter:
                # Whether the tower has run is asked of all: where it ran on one rank, its gradients
                # are those of all.
                ran = any(report[0] for report in self.data.all_gather([self._tower_ran]))
                self.active = [one for one in self.optimized if ran or one is self.language]
            with span("backward"):
                if self.language in self.active:
                    finalize_model_grads([self.language.ddp], None)
                if self.tower in self.active:
                    self.tower.ddp.finish_grad_sync()
                    self.tower.average_over_tensor_ranks()
                for one in self.active:
                    one.optimizer.prepare_grads()
        return sums

    def _passes(
        self, batches: Sequence[B], nll: Callable[[B], Tensor], factor: float, span: Span
    ) -> Tensor:
        """Run forward and backward passes of all micro-batches, and return their NLLs.

        Args:
            factor: what a loss is multiplied by.
        """
        no_sync = self.language.ddp.no_sync if self.language.ddp is not None else None
        if self.groups.stages.world > 1:
            gpt = self.module.model.language_model.gpt  # type: ignore[union-attr]
            return run_schedule(self.stage, gpt, batches, nll, factor, no_sync, span)  # type: ignore[arg-type]
        sums = []
        for place, batch in enumerate(batches):
            with nullcontext() if place == len(batches) - 1 or no_sync is None else no_sync():
                with span("forward"):
                    loss = nll(batch)
                with span("backward"):
                    common.backward(loss * factor)
            sums.append(loss.detach())
        return torch.stack(sums)

    def clip_gradient(self, largest: float | None) -> Tensor:
        with on_cpu(self.ranks.device):
            squares = torch.zeros((), device=self.ranks.device)
            for one in self.active:
                squares += one.norm_squared().to(self.ranks.device)
            # a pipeline stage may have nothing to train, and adds 0
            dist.all_reduce(squares, group=self._norm_group)
            norm = squares.sqrt()
            known = norm.item()  # megatron-core scales by a number
            # as torch clips
            clips = largest is not None and math.isfinite(known)
            factor = largest / (known + 1e-6) if clips and largest is not None else 1.0
            if factor < 1:
                for one in self.active:
                    one.scale_gradients(factor)
        return norm

    def optimizer_step(self, lr: float) -> None:
        with on_cpu(self.ranks.device):
            for one in self.active:
                one.step(lr)
            for one in self.optimized:
                one.zero_grad()

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # the weights that are computed with are in the compute dtype

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._gather_weights()
        with common.evaluation_mode(self.module):
            yield

    def iter_hf_weights(
        self, adapter: Adapter = "merged", owner: Owner = to_all_ranks
    ) -> Iterator[tuple[str, Tensor]]:
        self._gather_weights()
        for one in self.both:
            yield from one.hf_weights(adapter, self._scale, owner)

    def model_state(self, owner: Owner = to_all_ranks) -> Iterator[tuple[str, Tensor]]:
        return self.iter_hf_weights("only" if self._adapted else "merged", owner)

    def gradients(self) -> dict[str, Tensor]:
        return {
            name: tensor.to("cpu", copy=True)
            for one in self.both
            for name, tensor in one.gradients(one in self.active, to_rank_zero)
        }

    def optimizer_state(self, owner: Owner = to_all_ranks) -> Iterator[tuple[str, Tensor]]:
        for one in self.both:
            yield from one.state(owner)

    def load_state(self, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        mine = {
            whole for one in self.both for name in one.parameters for whole in one.map.names(name)
        }
        own = set[str]().union(*self.groups.stages.all_gather_objects(mine))
        assert model.keys() == {
            name for name in own if is_adapter_name(name) or not self._adapted
        }, "the same config has the same tensors"
        with on_cpu(self.ranks.device):
            for one in self.both:
                one.load(model, optimizer)

    def observe(self, component: Callable[[str], str]) -> Iterator[Observed]:
        gpt: Any = self.module.model.language_model.gpt  # type: ignore[union-attr]
        yield from live.observe_process_groups(self.groups)
        yield from live.observe_bridge(gpt, self.bridge)
        yield from live.observe_language(gpt, self.tower_blocks)
        yield from live.observe_megatron_adapters(gpt, self.language.map.names, component)
        for one, where in zip(
            self.both, ("the language model's DDP", "the tower's DDP"), strict=True
        ):
            if one.ddp is not None:
                yield from live.observe_megatron_ddp(one.ddp, where, overlaps=one is self.language)
                yield from live.observe_megatron_optimizer(one.optimizer)
        if self.stage.first:
            visual: Any = self.module.model.visual  # type: ignore[union-attr]
            yield Observed(
                "model.dtype",
                observe_model.dtype_name(next(visual.parameters()).dtype),
                "the tower's weights",
            )
            yield from observe_model.observe_layers(visual)
            yield from observe_model.observe_adapters(visual, component, TOWER_PREFIX)

    def optimizer_groups(self) -> Iterator[OptimizerGroup]:
        for one in self.optimized:
            yield from one.optimizer_groups()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for one in self.both:
            for name, parameter in one.parameters.items():
                yield one.map.names(name)[0], parameter

    def _gather_weights(self) -> None:
        with on_cpu(self.ranks.device):
            for one in self.both:
                one.gather_weights()

    def _record_tower(self, *_: Any) -> None:
        self._tower_ran = True


def build_megatron(inputs: EngineInputs) -> MegatronEngine:
    """Build the engine `megatron`.

    Raises:
        SharedFindings: see `MegatronEngine`; and `not-built-on-engine` of packed rows.
    """
    i = inputs
    engine = MegatronEngine(
        i.module,
        i.settings,
        i.optim,
        i.ranks,
        i.compute_dtype,
        i.component,
        checkpointing=i.checkpointing,
        weights=i.weights,
    )
    if i.packed and not engine.heeds_masks:
        raise SharedFindings(
            Diagnostic(
                "not-built-on-engine",
                (
                    "data.packing is token_budget, and megatron-core's layers here look at no mask:"
                    " documents would see each other"
                ),
                "set data.packing=none, or engine=fsdp2",
                "data.packing",
            )
        )
    return engine
