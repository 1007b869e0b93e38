"""Processes loaded weights of vLLM's classes as its engine does before it serves them."""

from typing import Any

import torch


def process_weights(model: Any, config: Any) -> None:
    """Do what vLLM does between loading and serving: pack weights, tie heads, fold scales."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    with set_current_vllm_config(config), torch.device("cpu"):
        process_weights_after_loading(model, config.model_config, torch.device("cpu"))
