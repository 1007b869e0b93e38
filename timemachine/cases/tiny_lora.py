"""A tiny model with an adapter in it, and the comparison with what was made of it."""

import peft
import torch
from report import report
from tiny_models import make

import vtool

torch.manual_seed(0)  # also for a model that is made before its adapter


def adapted(model=None, targets=("q_proj", "v_proj"), **more):
    torch.manual_seed(0)
    lora = peft.LoraConfig(target_modules=list(targets), init_lora_weights=False, **more)
    return trained(peft.get_peft_model(make("llama") if model is None else model, lora))


def trained(live):
    """Move what is trained, as some steps would have."""
    with torch.no_grad():
        for parameter in live.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return live


def tell_apart(live, served):
    report("compare", vtool.compare_models(live, served, {"input_ids": torch.arange(3, 40)[None]}))
