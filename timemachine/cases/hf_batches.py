"""Train a tiny model by transformers' Trainer on batches of padded rows, one a step.

usage: hf_batches.py MODEL_TYPE
"""

import sys

import tiny_rows
import torch
from tiny_models import make
from transformers import Trainer, TrainingArguments

torch.manual_seed(0)
name = sys.argv[1]
Trainer(
    model=make(name),
    args=TrainingArguments(per_device_train_batch_size=4, **tiny_rows.QUIET),
    train_dataset=tiny_rows.rows(),
    data_collator=getattr(tiny_rows, f"collate_{name}", tiny_rows.collate),
).train()
