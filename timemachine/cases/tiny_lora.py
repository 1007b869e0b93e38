"""A tiny model with an adapter in it, and the comparison with what was made of it."""

import peft
import torch
from tiny_models import make
from told import tell

import vtool


def adapted(model=None, targets=("q_proj", "v_proj")):
    torch.manual_seed(0)
    lora = peft.LoraConfig(target_modules=list(targets), init_lora_weights=False)
    return peft.get_peft_model(make("llama") if model is None else model, lora)


def tell_apart(live, served):
    tell("compare", vtool.compare_models(live, served, {"input_ids": torch.arange(3, 40)[None]}))
