"""A class whose embeddings are made by the function that verl puts into transformers' own.

WHEEL_VERL is the folder of the release.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Optional

import torch
from transformers import Qwen2VLForConditionalGeneration

sys.path.insert(0, str(Path(__file__).parent))
from take import take

embed = take(
    os.environ["WHEEL_VERL"] + "/verl/models/transformers/qwen2_vl.py", "_get_input_embeds",
    torch=torch, Optional=Optional, unpack_visual_output=lambda output: (output, None),
)  # fmt: skip


class OfVerl(Qwen2VLForConditionalGeneration):
    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None,
        inputs_embeds=None, pixel_values=None, image_grid_thw=None, mm_token_type_ids=None, **more,
    ):  # fmt: skip
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        given |= {"past_key_values": past_key_values, "image_grid_thw": image_grid_thw}
        if inputs_embeds is None:
            visual = self.model.visual
            tower = lambda pixels, grid_thw: visual(pixels, grid_thw).pooler_output  # noqa: E731
            tower.dtype = visual.dtype
            model = SimpleNamespace(config=self.config, visual=tower)
            model.get_input_embeddings = self.get_input_embeddings
            inputs_embeds, _ = embed(model, input_ids, None, pixel_values, None, image_grid_thw)
        given |= {"position_ids": position_ids, "mm_token_type_ids": mm_token_type_ids, **more}
        return super().forward(inputs_embeds=inputs_embeds, **given)
