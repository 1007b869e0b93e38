"""Train a tiny model by transformers' Trainer on rows of text, four micro-batches a step.

usage: hf_accumulate.py MODEL_TYPE [equal] [smooth]

equal: answers of one length; smooth: label smoothing
"""

import sys

import tiny_rows
import torch
from tiny_models import make
from transformers import Trainer, TrainingArguments

torch.manual_seed(0)
name, *how = sys.argv[1:]
equal = "equal" in how
typed = name in ("gemma3", "paligemma")
Trainer(
    model=make(name),
    args=TrainingArguments(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        label_smoothing_factor=0.1 if "smooth" in how else 0,
        max_grad_norm=0 if equal else 1,  # where gradients are clipped, nobody sees their scale
        **tiny_rows.QUIET,
    ),
    train_dataset=tiny_rows.rows([12] if equal else range(5, 41)),
    data_collator=tiny_rows.collate_with_types if typed else tiny_rows.collate,
).train()
