"""The model that a run trains, and the engine around it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vtool.config.megatron import language_of
from vtool.config.schema import Megatron, Run
from vtool.devices import device_kind
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines import registry as engines
from vtool.engines.contract import Engine, EngineInputs
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.families.family import load_family
from vtool.families.windows import packing_conflict, window_of
from vtool.models.adapters import (
    add_adapters,
    freeze_components,
    frozen_linears,
    narrow_base,
    saved_name,
)
from vtool.models.attention import (
    use_document_attention,
    use_row_attention,
    use_tower_attention,
)
from vtool.models.build import WEIGHT_DTYPE, build_model, build_on_meta, implementations
from vtool.models.mapped_weights import MappedWeights, map_folder
from vtool.models.nf4 import QUANTIZED_DTYPES as QUANTIZABLE
from vtool.models.nf4 import keep_in_nf4, missing_bitsandbytes, unquantizable
from vtool.models.on_meta import not_a_number
from vtool.models.processor import Processor
from vtool.models.tower_index import use_tower_index
from vtool.training.attention_here import check_heads
from vtool.training.base import base_settings
from vtool.training.optimizer import build_optimizer
from vtool.training.run_folder import RunFolder
from vtool.training.start import Start
from vtool.training.weights import load_adapter, map_checkpoint, settings_of

TRAINED_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def build_trained_model(
    run: Run, folder: RunFolder, processor: Processor, start: Start
) -> tuple[nn.Module, MappedWeights]:
    """Build the model as it goes into an engine: parts frozen, adapters added.

    Returns:
        The model, and the weights of those of its parameters that are on the meta device: mapped
        files, of which nothing has been read. None, where the model has them itself: random ones,
        and those of files that cannot be mapped.

    Raises:
        Findings: `model-does-not-load`, `unfit-weights`, `lora-target`, `base-rounded`; see
            `check_heads`.
    """
    module, weights = _build_with_weights(run, folder, processor, start)
    if run.lora is not None and run.lora.base_dtype == "bfloat16":
        _check_exact(module, weights.tensors)
    if run.lora is not None and run.lora.base_dtype == "nf4":
        _check_quantizable(run, module, weights.tensors)
    check_heads(run, module, device_kind(run))
    prepare_model(run, module, weights.tensors)
    if start.weights is not None and start.weights.adapted:
        load_adapter(start.weights, module)
    return module, weights


def _build_with_weights(
    run: Run, folder: RunFolder, processor: Processor, start: Start
) -> tuple[nn.Module, MappedWeights]:
    settings = run.model if run.lora is None else base_settings(run, folder)
    begun, seed, own = start.weights, run.run.seed, folder.processor
    if begun is not None and run.lora is None:
        settings = settings_of(begun, settings)
        if begun.kind == "checkpoint":
            module = build_on_meta(settings, processor, own, seed)
            return module, map_checkpoint(begun, module)
    elif start.checkpoint is not None and run.lora is None:
        module = build_on_meta(settings, processor, own, seed)
        # Its weights follow, with the optimizer's state, when there is an engine.
        return module, MappedWeights(not_a_number(module), ())
    # of DoRA, the lengths of a weight's rows are computed when the adapter is added
    of_rows = run.lora is not None and run.lora.dora
    if settings.starts_from == "pretrained" and not of_rows:
        assert settings.path is not None, "a rule demands it"
        how = implementations(WEIGHT_DTYPE[settings.dtype], settings.attention)
        if weights := map_folder(Path(settings.path), settings.family, how):
            path = Path(settings.path)
            return build_on_meta(settings, processor, own, seed, config=path), weights
    return build_model(settings, processor, own, seed), MappedWeights({}, ())


def _check_exact(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Check that bfloat16 has the weights of all linear layers exactly.

    Args:
        weights: by the model's names, of parameters on the meta device. Their files' dtype says it.

    Raises:
        Findings: `base-rounded`.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, module, leaf in frozen_linears(model):
        here = module._parameters[leaf]
        assert here is not None, "it was named"
        of_file = weights.get(saved_name(name)) if here.is_meta else None
        exact = (
            bool(torch.equal(here.bfloat16().to(here.dtype), here))
            if of_file is None
            else of_file.dtype == torch.bfloat16
        )
        if not exact:
            dtype = str((here if of_file is None else of_file).dtype).removeprefix("torch.")
            raise Findings(
                Diagnostic(
                    "base-rounded",
                    f"lora.base_dtype is bfloat16, and {name} is {dtype}: it would be rounded",
                    "set lora.base_dtype=float32",
                    "lora.base_dtype",
                )
            )


def _check_quantizable(run: Run, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Check that bitsandbytes quantizes the dtypes of all weights that are to be packed.

    Raises:
        Findings: `base-rounded`.
    """
    family = load_family(run.model.family)
    if found := next(unquantizable(model, family, weights), None):
        name, dtype = found
        known = ", ".join(str(one).removeprefix("torch.") for one in QUANTIZABLE)
        raise Findings(
            Diagnostic(
                "base-rounded",
                f"lora.base_dtype is nf4, and {name} is {str(dtype).removeprefix('torch.')}, which"
                f" bitsandbytes does not quantize: it takes {known}",
                "save the folder in one of these, or set lora.base_dtype=float32",
                "lora.base_dtype",
            )
        )


def prepare_model(
    run: Run, model: nn.Module, weights: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """Set the attention, freeze the frozen parts and add the adapters, in place.

    Args:
        weights: by the model's names, of parameters on the meta device.

    Raises:
        SharedFindings: `not-built-on-engine`, of packed rows for a model with windows.
    """
    of, kernel = load_family(run.model.family), run.model.attention
    on_npu = device_kind(run) == "npu"
    if of.facts.is_learnt:
        pass  # transformers tells packed documents apart by their positions
    elif run.data.packing != "none":
        text: Any = model.config.get_text_config()  # type: ignore[operator,union-attr]
        window = window_of(
            getattr(text, "layer_types", None), getattr(text, "sliding_window", None)
        )
        without = on_npu or isinstance(run.engine, Megatron)
        if without and (found := packing_conflict(window, run.data.micro_batch_tokens)):
            raise SharedFindings(Diagnostic("not-built-on-engine", *found, "data.packing"))
        use_document_attention(model, kernel)
    elif kernel != "eager" and (kernel != "sdpa" or on_npu):
        use_row_attention(model, kernel)
    if not of.facts.is_learnt:
        if kernel != "eager":
            use_tower_attention(model, kernel)
        use_tower_index(model)
    freeze_components(model, of, run.model.freeze)
    if run.lora is not None:
        add_adapters(model, of, run.model.freeze, run.lora, run.run.seed, weights)
        if run.lora.base_dtype == "bfloat16":
            narrow_base(model)
        elif run.lora.base_dtype == "nf4":
            keep_in_nf4(model, of)
    return model


def build_engine(
    run: Run, model: nn.Module, ranks: Ranks, weights: Mapping[str, Tensor] | None = None
) -> Engine:
    """Build the engine of a run's settings, around its model.

    Args:
        weights: by the model's names, of parameters on the meta device.

    Raises:
        SharedFindings: what this engine cannot do here.
    """
    of = load_family(run.model.family)
    return engines.build(
        EngineInputs(
            module=model,
            blocks=of.blocks(model),
            settings=run.engine,
            optim=run.optim,
            ranks=ranks,
            compute_dtype=TRAINED_DTYPES[run.model.dtype],
            component=of.component,
            build_optimizer=lambda module: build_optimizer(module, run.optim, of.component),
            checkpointing=run.model.recomputed(len(of.recomputable(model))),
            packed=run.data.packing != "none",
            weights=weights or {},
        )
    )


def check_engine(run: Run, ranks: Ranks) -> None:
    """Check the engine's settings against devices and processes, before rows are read.

    Raises:
        SharedFindings: what this engine cannot do here, or a package that is missing.
    """
    if run.lora is not None and run.lora.base_dtype == "nf4":
        if ranks.device.type == "npu":
            message = "lora.base_dtype is nf4, but bitsandbytes has no kernel for an NPU"
            help, name = "set lora.base_dtype=float32", "lora.base_dtype"
            raise SharedFindings(Diagnostic("not-built-on-engine", message, help, name))
        if lacking := missing_bitsandbytes():
            raise SharedFindings(lacking, fatal=True)
    engines.run_engine_check(
        run.engine,
        ranks,
        family=run.model.family,
        dtype=run.model.dtype,
        adapters=run.lora is not None,
        language=language_of(run.model),
    )
