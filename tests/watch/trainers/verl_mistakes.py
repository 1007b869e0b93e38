"""A plug-in of verl with mistakes: VERL_MISTAKE says which one its loss gets."""

import os
from typing import Any

import torch
from verl.workers.utils import losses


def means(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """Average over the micro-batch, and over the 3 micro-batches of a step."""
    mask = torch.roll(data["loss_mask"].values(), -1, 0)
    return -(model_output["log_probs"].values() * mask).sum() / mask.sum() / 3, {}


def mask_late(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """Use the mask of a token for the position behind which it is."""
    mask = data["loss_mask"].values()
    loss = -(model_output["log_probs"].values() * mask).sum() / data["batch_num_tokens"]
    return loss * data["dp_size"], {}


losses.sft_loss = {"means": means, "mask_late": mask_late}[os.environ["VERL_MISTAKE"]]
