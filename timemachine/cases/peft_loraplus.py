"""Make the optimizer of LoRA+ with a rate of its own for embeddings, and ask for that rate.

usage: peft_loraplus.py
"""

import wheels  # noqa: F401, I001

import torch
from peft.optimizers import create_loraplus_optimizer
from tiny_lora import adapted
from report import report

import vtool

model = adapted(targets=["embed_tokens", "q_proj"])
made = create_loraplus_optimizer(
    model, torch.optim.AdamW, lr=1e-4, loraplus_lr_ratio=16, loraplus_lr_embedding=1e-6
)
theirs = {id(one) for name, one in model.named_parameters() if "lora_embedding" in name}
groups = [group for group in made.param_groups if theirs & {id(one) for one in group["params"]}]
embeddings = torch.optim.AdamW([{**group} for group in groups])
report("compare", vtool.compare({"optim.lr": 1e-6}, {"optimizer": embeddings}))
