"""Train a tiny model by transformers' Trainer on the ranks of torchrun, one micro-batch a step.

usage: torchrun --nproc-per-node 2 hf_ranks.py MODEL_TYPE
"""

import sys

import tiny_rows
import torch
from tiny_models import make
from transformers import Trainer, TrainingArguments

torch.manual_seed(0)
Trainer(
    model=make(sys.argv[1]),
    args=TrainingArguments(per_device_train_batch_size=2, ddp_backend="gloo", **tiny_rows.QUIET),
    train_dataset=tiny_rows.rows(),
    data_collator=tiny_rows.collate,
).train()
