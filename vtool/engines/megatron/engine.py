"""The engine `megatron`: megatron-core's tensor, sequence, pipeline and data parallelism, its DDP
and its optimizers.

Losses are divided by N before the backward pass, so that megatron-core has to add up and nothing
else: with `calculate_per_token_loss` its DDP leaves out the division by the data parallel ranks
that it would make. Its collective makes that division where `ddp_config.average_in_collective` asks
for it; the loss is then multiplied by as much.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vtool.config.megatron import BUILT, Language
from vtool.config.megatron_ddp import Problem
from vtool.config.readback import Observed
from vtool.config.schema import Optim
from vtool.config.schema.megatron import Megatron as MegatronSettings
from vtool.engines import common
from vtool.engines.contract import Group
from vtool.engines.megatron import mbridge
from vtool.engines.megatron import observe_megatron as live
from vtool.engines.megatron.ddp_config import live_ddp_config
from vtool.engines.megatron.groups import start_groups
from vtool.engines.megatron.megatron_lora import add_adapters
from vtool.engines.megatron.model import (
    build_language,
    recompute_layers,
    replace_language,
    text_shape,
    transformer_fields,
    unsupported,
)
from vtool.engines.megatron.optimized_module import OptimizedModule
from vtool.engines.megatron.pipeline import Stage, run_schedule
from vtool.engines.megatron.shim import on_cpu, silence
from vtool.engines.megatron.start import check_start
from vtool.engines.megatron.weights import from_megatron, hf_names, name_in_model, share_of
from vtool.engines.ranks import Ranks
from vtool.engines.spans import Span, null_span
from vtool.models import read_back as models
from vtool.models.adapters import Adapter, has_adapters, is_adapter, saved_name, scale_of

B = TypeVar("B")
TOWER = "model.visual."


class Megatron:
    """See `vtool.engines.contract.Engine`."""

    def __init__(
        self,
        module: nn.Module,
        settings: MegatronSettings,
        optim: Optim,
        ranks: Ranks,
        compute_dtype: torch.dtype,
        part: Callable[[str], str],
        *,
        checkpointing: bool = False,
    ) -> None:
        """Take a transformers model apart; its language part is let go. What in it is frozen stays
        so, and its adapters are taken over.

        Args:
            part: which of `optim.groups` a parameter is of, by its name.
            checkpointing: keep only what goes into each layer of the language model, and compute
                the rest again. (The tower has its own.)

        Raises:
            SharedFindings: `extra-not-installed`, `megatron-ddp-conflict`,
                `needs-transformer-engine`, `not-built-on-engine`, `parallel-sizes`.
        """
        text = module.config.get_text_config()  # type: ignore[operator,union-attr]
        dtype, cpu = str(compute_dtype).removeprefix("torch."), ranks.device.type == "cpu"
        self.adapted = has_adapters(module)
        _check(module.config.model_type, text, settings, ranks, dtype, self.adapted)  # type: ignore[arg-type,union-attr]
        silence()
        ddp_config = live_ddp_config(
            settings.wrap_config, settings.ddp_config, dtype=dtype, cpu=cpu
        )

        self.ranks = ranks
        self.size, self.trained = common.sizes(module)
        self.groups = start_groups(settings.parallel, ranks)
        self.data = self.groups.data
        self.stage = Stage(self.groups.stages)
        averaged = ddp_config.average_in_collective
        # The ranks that spread a row's tokens over themselves have the whole loss of it each.
        self._factor = (self.groups.copies.world if averaged else 1) / settings.parallel.context
        fields = transformer_fields(
            text,
            compute_dtype,
            ranks.device,
            settings.transformer_config.model_dump()
            | {
                "tensor_model_parallel_size": settings.parallel.tensor,
                "pipeline_model_parallel_size": settings.parallel.pipeline,
                "context_parallel_size": settings.parallel.context,
                "sequence_parallel": settings.parallel.sequence and settings.parallel.tensor > 1,
                "calculate_per_token_loss": not averaged,
            },
        )
        whole = {
            saved_name(name): parameter.detach() for name, parameter in module.named_parameters()
        }
        trained = {
            saved_name(name)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self._scale = scale_of(module) if self.adapted else 0.0
        tower: nn.Module = module.model.visual  # type: ignore[union-attr,assignment]

        def in_model(gpt: Any) -> Callable[[str], str]:
            return partial(
                name_in_model,
                before=gpt.decoder.layers[0].layer_number - 1,
                tied=text.tie_word_embeddings,
            )

        def ready(gpt: Any) -> None:
            add_adapters(
                gpt, whole, text_shape(text), self._scale, self.groups.tensor_rank, in_model(gpt)
            )
            for name, parameter in gpt.named_parameters():
                parameter.requires_grad_(trained.issuperset(hf_names(in_model(gpt)(name))))
            if checkpointing:
                recompute_layers(gpt, ranks.device)

        ddp, self.bridge = None, None
        if settings.bridge == "mbridge":
            wrapped = any(not name.startswith(TOWER) for name in trained)
            gpt, ddp, self.bridge = mbridge.build_language(
                text, fields, ddp_config, ranks.device, ready, wrapped=wrapped
            )
        else:
            gpt = build_language(text, fields, ranks.device, own_layers=self.adapted)
            ready(gpt)
        self.config = gpt.config
        replace_language(module, gpt, self.stage)
        self.heeds_masks: bool = gpt.heeds_masks
        tower = tower if self.stage.first else nn.Module()
        self.module = module.to(ranks.device)
        # not its buffers: frequencies of positions stay float32
        for parameter in tower.parameters():
            parameter.data = parameter.data.to(compute_dtype)
        self._tower_ran = False
        tower.register_forward_pre_hook(self._note_the_tower)
        with on_cpu(self.ranks.device):
            self.parts = [
                self._language_part(text, ddp_config, optim, whole, part, in_model(gpt), ddp),
                self._tower_part(tower, ddp_config, optim, part),
            ]
            for one in self.parts:
                one.load(whole, {})  # again, in the optimizers' precision
        self.trained_parts = [one for one in self.parts if one.ddp is not None]
        self.active: list[OptimizedModule] = []
        shares = settings.wrap_config.use_distributed_optimizer
        self._norm_group = self.groups.everyone if shares else self.groups.model

    def forward_backward(
        self,
        batches: Sequence[B],
        nll: Callable[[Callable[..., Any], B], Tensor],
        supervised: int,
        *,
        every_parameter: bool,
        span: Span = null_span,
    ) -> list[float]:
        from megatron.core.distributed import finalize_model_grads

        language, tower = self.parts
        self._tower_ran = False
        with on_cpu(self.ranks.device):
            for part in self.trained_parts:
                part.zero()
            sums = self._passes(
                batches, lambda batch: nll(self.module, batch), self._factor / supervised, span
            )
            self.active = self.trained_parts
            if not every_parameter:
                # Whether the tower has run is asked of all: where it ran on one rank, its gradients
                # are those of all.
                ran = any(report[0] for report in self.data.all_gather([self._tower_ran]))
                self.active = [part for part in self.trained_parts if ran or part is language]
            with span("backward"):
                if language in self.active:
                    finalize_model_grads([language.ddp], None)
                if tower in self.active:
                    tower.ddp.finish_grad_sync()
                    tower.average_over_tensor_ranks()
                for part in self.active:
                    part.optimizer.prepare_grads()
        return sums

    def _passes(
        self, batches: Sequence[B], nll: Callable[[B], Tensor], factor: float, span: Span
    ) -> list[float]:
        """Forwards and backwards of all micro-batches;

        their NLLs. `factor`: what a loss is multiplied by.
        """
        no_sync = self.parts[0].ddp.no_sync if self.parts[0].ddp is not None else None
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
        return torch.stack(sums).tolist()

    def clip_gradient(self, largest: float | None) -> float:
        with on_cpu(self.ranks.device):
            squares = torch.zeros((), device=self.ranks.device)
            for part in self.active:
                squares += part.norm_squared().to(self.ranks.device)
            # a pipeline stage may have nothing to train, and adds 0
            dist.all_reduce(squares, group=self._norm_group)
            norm = squares.sqrt().item()
            # as torch clips
            factor = 1.0 if largest is None or not math.isfinite(norm) else largest / (norm + 1e-6)
            if factor < 1:
                for part in self.active:
                    part.scale(factor)
        return norm

    def optimizer_step(self, lr: float) -> None:
        with on_cpu(self.ranks.device):
            for part in self.active:
                part.update(lr)
            for part in self.trained_parts:
                part.zero()

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # the weights that are computed with are in the compute dtype

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._settle()
        self.module.eval()
        try:
            yield
        finally:
            self.module.train()

    def iter_hf_weights(self, adapter: Adapter = "merged") -> Iterator[tuple[str, Tensor]]:
        self._settle()
        for part in self.parts:
            yield from self.stage.over_stages(part.weights(adapter, self._scale))

    def model_state(self) -> dict[str, Tensor]:
        return self._kept(self.iter_hf_weights("only" if self.adapted else "merged"))

    def gradients(self) -> dict[str, Tensor]:
        mine = [part.gradients() if part in self.active else iter(()) for part in self.parts]
        return self._kept(pair for pairs in mine for pair in self.stage.over_stages(pairs))

    def optimizer_state(self) -> dict[str, Tensor]:
        return self._kept(
            pair for part in self.parts for pair in self.stage.over_stages(part.state())
        )

    def load_state(self, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        mine = {
            whole for part in self.parts for name in part.parameters for whole in part.names(name)
        }
        own = set[str]().union(*self.groups.stages.all_gather_objects(mine))
        assert model.keys() == {name for name in own if is_adapter(name) or not self.adapted}, (
            "the same config has the same tensors"
        )
        with on_cpu(self.ranks.device):
            for part in self.parts:
                part.load(model, optimizer)

    def observe(self, part: Callable[[str], str]) -> Iterator[Observed]:
        language, tower = self.parts
        gpt: Any = self.module.model.language_model.gpt  # type: ignore[union-attr]
        yield from live.observe_groups(self.groups)
        yield from live.observe_bridge(gpt, self.bridge)
        yield from live.observe_language(gpt)
        yield from live.observe_megatron_adapters(gpt, language.names, part)
        for one, where in ((language, "the language model's DDP"), (tower, "the tower's DDP")):
            if one.ddp is not None:
                yield from live.observe_megatron_ddp(one.ddp, where, overlaps=one is language)
                yield from live.observe_megatron_optimizer(one.optimizer)
        if self.stage.first:
            visual: Any = self.module.model.visual  # type: ignore[union-attr]
            yield Observed(
                "model.dtype",
                models.dtype_name(next(visual.parameters()).dtype),
                "the tower's weights",
            )
            yield from models.read_back(visual)
            yield from models.read_adapters(visual, part, TOWER)

    def optimizer_groups(self) -> Iterator[Group]:
        for one in self.trained_parts:
            yield from one.optimizer_groups()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for one in self.parts:
            for name, parameter in one.parameters.items():
                yield one.names(name)[0], parameter

    def _settle(self) -> None:
        with on_cpu(self.ranks.device):
            for part in self.parts:
                part.settle()

    def _kept(self, pairs: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """On rank 0 all of it, in the CPU's memory; elsewhere nothing."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in pairs if self.ranks.rank == 0}

    def _note_the_tower(self, *_: Any) -> None:
        self._tower_ran = True

    def _language_part(
        self,
        text: Any,
        ddp_config: Any,
        optim: Optim,
        whole: Mapping[str, Tensor],
        part: Callable[[str], str],
        in_model: Callable[[str], str],
        ddp: Any,
    ) -> OptimizedModule:
        shape, size, rank = text_shape(text), self.groups.tensor_size, self.groups.tensor_rank
        gpt: Any = self.module.model.language_model.gpt  # type: ignore[union-attr]
        with torch.no_grad():
            for name, parameter in gpt.named_parameters():
                parameter.copy_(share_of(in_model(name), whole, shape, size, rank))

        def join(name: str, shares: Sequence[Tensor]) -> dict[str, Tensor]:
            return from_megatron(in_model(name), shares, shape)

        def cut(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
            return share_of(in_model(name), tensors, shape, size, rank)

        def names(name: str) -> tuple[str, ...]:
            return hf_names(in_model(name))

        return OptimizedModule(
            gpt, self.config, ddp_config, optim, self.groups, names, join, cut, part, ddp
        )

    def _tower_part(
        self, tower: nn.Module, ddp_config: Any, optim: Optim, part: Callable[[str], str]
    ) -> OptimizedModule:
        def join(name: str, shares: Sequence[Tensor]) -> dict[str, Tensor]:
            # every tensor parallel rank has the whole of it
            return {saved_name(TOWER + name): shares[0]}

        def cut(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
            return tensors[saved_name(TOWER + name)]

        # When the tower runs is not the same on every rank: a row without an image comes to it
        # late, or not at all. Its collectives overlap with nothing, so that all ranks have theirs
        # in one order (gloo aborts otherwise, and NCCL would wait for ever).
        apart = replace(
            ddp_config,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            align_param_gather=False,
            bucket_size=None,
        )
        return OptimizedModule(
            tower,
            self.config,
            apart,
            optim,
            self.groups,
            lambda name: (saved_name(TOWER + name),),
            join,
            cut,
            part,
        )


def _check(
    family: str, text: Any, settings: MegatronSettings, ranks: Ranks, dtype: str, adapters: bool
) -> None:
    shape = text_shape(text)
    language = Language(shape.heads, shape.groups, text.num_hidden_layers)
    elsewhere = "use engine=ddp or engine=fsdp2"
    unbuilt = [
        Problem("kind", f"engine=megatron: {one}", elsewhere)
        for one in (unsupported(text) if family in BUILT else ())
    ]
    unbuilt += _tying(text, settings)
    check_start(
        settings,
        ranks,
        family=family,
        dtype=dtype,
        adapters=adapters,
        language=language,
        unbuilt=unbuilt,
    )


def _tying(text: Any, settings: MegatronSettings) -> list[Problem]:
    """What `wrap_config` says of embedding and head against the model's config."""
    wanted, tied = (
        settings.wrap_config.share_embeddings_and_output_weights,
        bool(text.tie_word_embeddings),
    )
    if wanted is None or wanted is tied:
        return []
    name = "wrap_config.share_embeddings_and_output_weights"
    message = (
        f"engine.{name} is {str(wanted).lower()}, but the model's config says {str(tied).lower()}"
    )
    return [Problem(name, message, "leave it out")]
