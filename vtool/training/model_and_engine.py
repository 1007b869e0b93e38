"""The model that a run trains, and the engine around it."""

from typing import Any

import torch
from torch import nn

from vtool.config.megatron import Language
from vtool.config.schema import Run
from vtool.devices import kind_of
from vtool.diagnostics import Diagnostic
from vtool.engines import registry as engines
from vtool.engines.contract import Engine, EngineInputs
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.families.windows import packing_conflict, window_of
from vtool.models.adapters import add_adapters, freeze_components
from vtool.models.attention import use_document_attention, use_row_attention
from vtool.models.build import build_model
from vtool.models.processor import Processor
from vtool.training.base import base_settings
from vtool.training.optimizer import build_optimizer
from vtool.training.run_folder import RunFolder
from vtool.training.start import Start
from vtool.training.weights import build_whole, load_adapter

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def build_trained_model(
    run: Run, folder: RunFolder, processor: Processor, start: Start
) -> nn.Module:
    """Build the model as it goes into an engine: parts frozen, adapters added.

    Where a checkpoint's weights follow, none are read; of a run with adapters, it has no others.
    """
    settings = run.model if run.lora is None else base_settings(run, folder)
    begun, seed = start.weights, run.run.seed
    model: nn.Module
    if begun is not None and run.lora is None:
        model = build_whole(begun, settings, processor, folder, seed)
    else:
        weights = start.checkpoint is None or run.lora is not None
        model = build_model(settings, processor, folder.processor, seed, weights=weights)
    prepare_model(run, model)
    if begun is not None and begun.adapted:
        load_adapter(begun, model)
    return model


def prepare_model(run: Run, model: nn.Module) -> nn.Module:
    """Set the attention, freeze the frozen parts and add the adapters, in place.

    Raises:
        SharedFindings: `not-built-on-engine`, of packed rows for a model with windows.
    """
    of = load_family(run.model.family)
    if run.data.packing != "none":
        text: Any = model.config.get_text_config()  # type: ignore[operator,union-attr]
        window = window_of(
            getattr(text, "layer_types", None), getattr(text, "sliding_window", None)
        )
        if found := packing_conflict(window, run.data.micro_batch_tokens):
            raise SharedFindings(Diagnostic("not-built-on-engine", *found, "data.packing"))
        use_document_attention(model)
    elif run.model.attention == "sdpa" and kind_of(run) == "npu":
        use_row_attention(model)
    freeze_components(model, of, run.model.freeze)
    if run.lora is not None:
        add_adapters(model, of, run.model.freeze, run.lora, run.run.seed)
    return model


def build_engine(run: Run, model: nn.Module, ranks: Ranks) -> Engine:
    """Build the engine of a run's settings, around its model.

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
            compute_dtype=DTYPES[run.model.dtype],
            component=of.component,
            build_optimizer=lambda module: build_optimizer(module, run.optim, of.component),
            checkpointing=run.model.gradient_checkpointing,
            packed=run.data.packing != "none",
        )
    )


def check_engine(run: Run, ranks: Ranks) -> None:
    """Check the engine's settings against devices and processes, before rows are read.

    Raises:
        SharedFindings: what this engine cannot do here.
    """
    # A model's folder has been looked at by the rules, which know nothing of the models that have
    # random weights.
    random = run.model.starts_from == "random"
    size = FAMILIES[run.model.family].sizes[run.model.size or ""] if random else None
    engines.check(
        run.engine,
        ranks,
        family=run.model.family,
        dtype=run.model.dtype,
        adapters=run.lora is not None,
        language=size and Language(size["heads"], size["kv_heads"], size["layers"]),
    )
