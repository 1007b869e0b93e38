"""A class of vLLM's made for quantized weights, and vLLM's processing of loaded weights."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .errors import NotRun
from .quantized import QUANTIZATION_CONFIG, quantize_checkpoint
from .state import named_parameters
from .subject import Subject
from .vllm_paths import drive


def process_weights(model: Any, config: Any) -> None:
    """Do what vLLM does between loading and serving: pack weights, tie heads, fold scales."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    with set_current_vllm_config(config), torch.device("cpu"):
        process_weights_after_loading(model, config.model_config, torch.device("cpu"))


def quantized_subject(
    plain: Subject,
    folder: Path,
    configure: Callable[[], Any],
    maker: Callable[[Any], Callable[[], Any]],
    into: Mapping[str, Sequence[str]],
) -> Subject:
    """Return the subject's class made for fp8: its config gets a `quantization_config`.

    Args:
        plain: the class as it is without.
        configure: reads a VllmConfig from the folder.
        maker: returns a function that makes models of a VllmConfig.
        into: for each parameter, the checkpoint's tensors that go into it when nothing is
            quantized.

    Raises:
        NotRun: nothing of it can be quantized.
    """
    file = folder / "config.json"
    values = json.loads(file.read_text())
    if "quantization_config" in values:
        raise NotRun("its checkpoint is quantized already")
    file.write_text(json.dumps({**values, "quantization_config": QUANTIZATION_CONFIG}))
    config = configure()
    make = maker(config)
    return replace(
        plain,
        make=make,
        checkpoint=quantize_checkpoint(plain.checkpoint, into, named_parameters(make())),
        paths=lambda subject: drive(subject, config),
        process=lambda model: process_weights(model, config),
        shards=None,
        quantized=None,
    )
