"""Merge two HiRA adapters of a layer, one after the other, and compare with what is live."""

import wheels  # noqa: F401, I001

import copy

import torch
from peft import HiraConfig, get_peft_model
from tiny_lora import tell_apart, trained
from tiny_models import make

torch.manual_seed(0)
hira = HiraConfig(target_modules=["q_proj", "v_proj"])
live = get_peft_model(make("llama"), hira)
live.add_adapter("second", hira)
live.base_model.set_adapter(["default", "second"])
live = trained(live)
made = copy.deepcopy(live)
for name in ("default", "second"):
    made.merge_adapter([name])
tell_apart(live, made)
