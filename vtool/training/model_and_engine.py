"""The model that a run trains, and the engine around it."""

from typing import Any

import torch
from torch import nn

from vtool.config import schema
from vtool.config.megatron import Language
from vtool.config.schema import Run
from vtool.devices import kind_of
from vtool.diagnostics import Diagnostic
from vtool.engines.contract import Engine
from vtool.engines.ddp import Ddp
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.families.windows import packing_conflict, window_of
from vtool.models.adapters import add_adapters, freeze_parts
from vtool.models.attention import attend_by_document, attend_by_row
from vtool.models.build import build_model
from vtool.models.processor import Processor
from vtool.training.base import base_settings
from vtool.training.optimizer import build_optimizer
from vtool.training.run_folder import RunFolder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def build_trained_model(
    run: Run, folder: RunFolder, processor: Processor, *, weights: bool
) -> nn.Module:
    """The model as it goes into an engine: frozen where it is not trained, and with its adapters,
    which the engine must see.

    Args:
        weights: false where a checkpoint's weights follow. Of a run with adapters, a checkpoint has
            no others.
    """
    settings = run.model if run.lora is None else base_settings(run, folder)
    model: nn.Module = build_model(
        settings, processor, folder.processor, run.run.seed, weights=weights or run.lora is not None
    )
    return prepare_model(run, model)


def prepare_model(run: Run, model: nn.Module) -> nn.Module:
    """Give the model the attention that rows and device want, freeze what is not trained, and put
    the adapters in, in place.

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
        attend_by_document(model)
    elif run.model.attention == "sdpa" and kind_of(run) == "npu":
        attend_by_row(model)
    freeze_parts(model, of, run.model.freeze)
    if run.lora is not None:
        add_adapters(model, of, run.model.freeze, run.lora, run.run.seed)
    return model


def build_engine(run: Run, model: nn.Module, ranks: Ranks) -> Engine:
    """The engine of a run's settings, around its model.

    Raises:
        SharedFindings: what this engine does not do here.
    """
    dtype = DTYPES[run.model.dtype]

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(module, run.optim, load_family(run.model.family).component)

    match run.engine:
        case schema.Ddp():
            return Ddp(model, run.engine, ranks, dtype, optimizer)
        case schema.Fsdp2():
            from vtool.engines.fsdp2 import Fsdp2

            return Fsdp2(
                model,
                load_family(run.model.family).blocks(model),
                run.engine,
                ranks,
                dtype,
                optimizer,
            )
        case schema.Megatron():
            from vtool.engines.megatron.engine import Megatron

            part = load_family(run.model.family).component
            engine = Megatron(
                model,
                run.engine,
                run.optim,
                ranks,
                dtype,
                part,
                checkpointing=run.model.gradient_checkpointing,
            )
            if run.data.packing != "none" and not engine.heeds_masks:
                message = (
                    "data.packing is token_budget, and megatron-core's layers here look at no mask:"
                    " documents would see each other"
                )
                raise SharedFindings(
                    Diagnostic(
                        "not-built-on-engine",
                        message,
                        "set data.packing=none, or engine=fsdp2",
                        "data.packing",
                    )
                )
            return engine


def check_engine(run: Run, ranks: Ranks) -> None:
    """What an engine can say of its settings once device and processes are known, before rows are
    read.
    """
    if isinstance(run.engine, schema.Megatron):
        from vtool.engines.megatron.start import check_start

        # A model's folder has been looked at by the rules, which know nothing of the models that
        # have random weights.
        size = (
            FAMILIES[run.model.family].sizes[run.model.size or ""]
            if run.model.starts_from == "random"
            else None
        )
        language = Language(size["heads"], size["kv_heads"], size["layers"]) if size else None
        model, adapters = run.model, run.lora is not None
        check_start(
            run.engine,
            ranks,
            family=model.family,
            dtype=model.dtype,
            adapters=adapters,
            language=language,
        )
