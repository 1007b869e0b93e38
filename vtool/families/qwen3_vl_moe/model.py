"""Qwen3-VL with experts, transformers' `Qwen3VLMoeForConditionalGeneration`."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vtool.families.qwen3_vl.model import Qwen3VL


class Qwen3VLMoe(Qwen3VL):
    """Qwen3-VL whose language layers send each token to a few of their experts.

    The router computes its weights in float32, whatever the model's dtype.
    """

    def text_config(self, table: Mapping[str, int]) -> dict[str, Any]:
        # transformers always makes the weights of a token's experts add up to 1, and reads no such
        # field; vLLM fails without it (qwen3_moe.py). Published folders have it.
        return super().text_config(table) | {
            "norm_topk_prob": True,
            "num_experts": table["experts"],
            "num_experts_per_tok": table["experts_per_token"],
            "moe_intermediate_size": table["expert_intermediate"],
        }

    def save_arguments(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write the matrices of experts as published folders have them, and vLLM reads them.

        transformers turns them when it reads a file, but not when it writes one.
        """
        turned = {
            name: tensor.transpose(1, 2).contiguous() if ".mlp.experts." in name else tensor
            for name, tensor in state.items()
        }
        return {"state_dict": turned, "save_original_format": False}
