"""The steps in which an engine is made of a transformers model.

`SourceModel` keeps what is needed of the model. `build_language` makes megatron-core's language
model: `GPTModel`, adapters on its linears, the base frozen, layers recomputed, and, by mbridge, its
DDP. `optimize_language` and `optimize_tower` fill in weights and give each a DDP and an optimizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vtool.config.megatron import MEGATRON_FAMILIES, Language
from vtool.config.megatron_ddp import Problem
from vtool.config.schema.megatron import Megatron
from vtool.engines.megatron.gpt_model import (
    build_gpt,
    recompute_layers,
    text_shape,
    transformer_fields,
    unsupported,
)
from vtool.engines.megatron.mbridge import build_gpt_with_mbridge
from vtool.engines.megatron.megatron_lora import add_megatron_adapters
from vtool.engines.megatron.optimized_module import BuildOptions, OptimizedModule
from vtool.engines.megatron.start import check_start
from vtool.engines.megatron.weights import TOWER_PREFIX, LanguageWeights, TowerWeights
from vtool.engines.ranks import Ranks
from vtool.models.adapters import adapter_scale, has_adapters, saved_name


@dataclass(frozen=True, slots=True)
class SourceModel:
    """The transformers model that an engine is made of, before it is taken apart."""

    family: str
    text: Any
    """Config of the language model."""
    weights: Mapping[str, Tensor]
    """Whole parameters by their names in files. A file's are read where they are looked into."""
    trained: frozenset[str]
    """Names of those that are trained."""
    adapted: bool
    """The model has adapters."""
    scale: float
    """The factor of B · A of the adapters."""

    @staticmethod
    def of(module: Any, weights: Mapping[str, Tensor]) -> "SourceModel":
        """Return the parts of a model that are used here; its parameters are shared, not copied.

        Args:
            weights: see `vtool.engines.contract.EngineInputs`.
        """
        named = {saved_name(name): parameter for name, parameter in module.named_parameters()}
        adapted = has_adapters(module)
        return SourceModel(
            module.config.model_type,
            module.config.get_text_config(),
            {
                name: weights[name] if parameter.is_meta else parameter.detach()
                for name, parameter in named.items()
            },
            frozenset(name for name, parameter in named.items() if parameter.requires_grad),
            adapted,
            adapter_scale(module) if adapted else 0.0,
        )


@dataclass(frozen=True, slots=True)
class BuiltLanguage:
    """This pipeline stage's language model of megatron-core."""

    gpt: Any
    weights: LanguageWeights
    ddp: Any = None
    """The module's DDP, if a bridge has wrapped it."""
    bridge: Any = None


def check_model(source: SourceModel, settings: Megatron, ranks: Ranks, dtype: str) -> None:
    """Check that this model can be built and spread as the settings say.

    Raises:
        SharedFindings: see `check_start`.
    """
    text, shape, unbuilt = source.text, text_shape(source.text), []
    if source.family in MEGATRON_FAMILIES:
        unbuilt = [
            Problem("kind", f"engine=megatron: {one}", "use engine=ddp or engine=fsdp2")
            for one in unsupported(text)
        ]
    wanted, tied = (
        settings.wrap_config.share_embeddings_and_output_weights,
        bool(text.tie_word_embeddings),
    )
    if wanted not in (None, tied):
        name = "wrap_config.share_embeddings_and_output_weights"
        unbuilt.append(
            Problem(
                name,
                (
                    f"engine.{name} is {str(wanted).lower()}, but the model's config says"
                    f" {str(tied).lower()}"
                ),
                "leave it out",
            )
        )
    check_start(
        settings,
        ranks,
        family=source.family,
        dtype=dtype,
        adapters=source.adapted,
        language=Language(
            shape.heads, shape.groups, text.num_hidden_layers, text.intermediate_size
        ),
        unbuilt=unbuilt,
    )


def build_language(source: SourceModel, options: BuildOptions) -> BuiltLanguage:
    """Build the language model with its adapters, frozen as the source is; weights follow."""
    shape, device = text_shape(source.text), options.device

    def weights_of(gpt: Any) -> LanguageWeights:
        return LanguageWeights.of(gpt, shape, options.groups.tensor_rank)

    def finish(gpt: Any) -> None:
        weights = weights_of(gpt)
        add_megatron_adapters(gpt, weights, source.weights, source.scale)
        for name, parameter in gpt.named_parameters():
            parameter.requires_grad_(source.trained.issuperset(weights.names(name)))
        if options.checkpointing:
            recompute_layers(gpt, device, options.checkpointing)

    fields = _transformer_fields(source, options)
    if options.settings.bridge == "mbridge":
        gpt, ddp, bridge = build_gpt_with_mbridge(
            source.text,
            fields,
            options.ddp_config,
            device,
            finish,
            wrapped=any(not name.startswith(TOWER_PREFIX) for name in source.trained),
        )
        return BuiltLanguage(gpt, weights_of(gpt), ddp, bridge)
    gpt = build_gpt(source.text, fields, device, own_layers=source.adapted)
    finish(gpt)
    return BuiltLanguage(gpt, weights_of(gpt))


def _transformer_fields(source: SourceModel, options: BuildOptions) -> dict[str, Any]:
    parallel = options.settings.parallel
    given = options.settings.transformer_config.model_dump() | {
        "tensor_model_parallel_size": parallel.tensor,
        "pipeline_model_parallel_size": parallel.pipeline,
        "context_parallel_size": parallel.context,
        "sequence_parallel": parallel.sequence and parallel.tensor > 1,
        "calculate_per_token_loss": not options.ddp_config.average_in_collective,
    }
    return transformer_fields(source.text, options.compute_dtype, options.device, given)


def optimize_language(
    language: BuiltLanguage, source: SourceModel, options: BuildOptions
) -> OptimizedModule:
    """Fill in the language model's weights, and give it a DDP and an optimizer."""
    gpt, weights = language.gpt, language.weights
    with torch.no_grad():
        for name, parameter in gpt.named_parameters():
            parameter.copy_(weights.cut(name, source.weights))
    return OptimizedModule(gpt, weights, gpt.config, options, language.ddp)


def optimize_tower(tower: nn.Module, config: Any, options: BuildOptions) -> OptimizedModule:
    """Give the vision tower a DDP and an optimizer.

    When the tower runs is not the same on every rank: a row without an image comes to it late, or
    not at all. Its collectives overlap with nothing, so that all ranks have theirs in one order
    (gloo aborts otherwise, and NCCL would wait for ever).

    Args:
        config: megatron-core's `TransformerConfig` of the language model.
    """
    apart = replace(
        options.ddp_config,
        overlap_grad_reduce=False,
        overlap_param_gather=False,
        align_param_gather=False,
        bucket_size=None,
    )
    return OptimizedModule(tower, TowerWeights(), config, replace(options, ddp_config=apart))
