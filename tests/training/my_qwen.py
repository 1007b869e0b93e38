"""A modeling file as a user has one:

the family's class, with a forward pass of its own that computes the same.
"""

from typing import Any

from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLModel,
)


class MyModel(Qwen2_5_VLModel):  # type: ignore[misc]
    """Embeds the tokens itself."""

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **more: Any
    ) -> Any:
        if inputs_embeds is None:
            inputs_embeds = self.get_input_embeddings()(input_ids)
        return super().forward(input_ids=input_ids, inputs_embeds=inputs_embeds, **more)


class MyQwen(Qwen2_5_VLForConditionalGeneration):  # type: ignore[misc]
    """Has that model inside, and draws each random weight once, as the family's class does."""

    def __init__(self, config: Any) -> None:
        super(Qwen2_5_VLForConditionalGeneration, self).__init__(config)
        self.model = MyModel(config)
        self.lm_head = nn.Linear(
            config.text_config.hidden_size, config.text_config.vocab_size, bias=False
        )
        self.post_init()
