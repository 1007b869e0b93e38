"""Train a tiny model by transformers' Trainer on rows of text, four micro-batches a step.

usage: hf_accumulate.py MODEL_TYPE [equal] [smooth] [short]

equal: answers of one length; smooth: label smoothing; short: the epoch ends in a step of two
"""

import sys

import tiny_rows
import torch
from tiny_models import make
from transformers import Trainer, TrainingArguments

torch.manual_seed(0)
name, *how = sys.argv[1:]
equal = "equal" in how
collate = tiny_rows.collate
if name in ("gemma3", "paligemma"):  # these want types of tokens, each its own
    collate = getattr(tiny_rows, f"collate_{name}")
Trainer(
    model=make(name),
    args=TrainingArguments(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        label_smoothing_factor=0.1 if "smooth" in how else 0,
        max_grad_norm=0 if equal else 1,  # where gradients are clipped, nobody sees their scale
        **tiny_rows.QUIET,
    ),
    train_dataset=tiny_rows.rows([12] if equal else range(5, 41), 12 if "short" in how else 24),
    data_collator=collate,
).train()
