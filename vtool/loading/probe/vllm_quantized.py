"""A class of vLLM's made for quantized weights, and vLLM's own processing of what has been loaded."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .quantized import QUANTIZATION_CONFIG, quantize_checkpoint
from .state import named_parameters
from .subject import NotRun, Subject
from .vllm_paths import drive


def processing(config: Any) -> Callable[[Any], None]:
    """What vLLM does between loading and serving:

    packs weights for its kernels, ties heads, folds scales.
    """

    def process(model: Any) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        with set_current_vllm_config(config), torch.device("cpu"):
            process_weights_after_loading(model, config.model_config, torch.device("cpu"))

    return process


def quantized_subject(
    plain: Subject,
    folder: Path,
    configure: Callable[[], Any],
    maker: Callable[[Any], Callable[[], Any]],
    into: Mapping[str, Sequence[str]],
) -> Subject:
    """The same class, made from the folder's config with a `quantization_config` in it.

    Args:
        plain: the class as it is without.
        configure: makes a VllmConfig of the folder.
        maker: given that, what makes models.
        into: for each parameter, the checkpoint's tensors that go into it when nothing is
            quantized.

    Raises:
        NotRun: nothing of it can be quantized.
    """
    written = folder / "config.json"
    values = json.loads(written.read_text())
    if "quantization_config" in values:
        raise NotRun("its checkpoint is quantized already")
    written.write_text(json.dumps({**values, "quantization_config": QUANTIZATION_CONFIG}))
    config = configure()
    make = maker(config)
    parameters: dict[str, Tensor] = named_parameters(make())
    return Subject(
        make=make,
        checkpoint=quantize_checkpoint(plain.checkpoint, into, parameters),
        load=plain.load,
        origin=plain.origin,
        code=plain.code,
        about=plain.about,
        paths=lambda subject: drive(subject, config),
        process=processing(config),
    )
