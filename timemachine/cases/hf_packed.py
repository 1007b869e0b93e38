"""Train a tiny model by transformers' Trainer on packed rows, separated by their positions.

usage: hf_packed.py MODEL_TYPE [masked]      masked: with an attention mask of ones
"""

import sys

import tiny_rows
import torch
from tiny_models import make
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

torch.manual_seed(0)
model = make(sys.argv[1])
model.config.use_cache = False
rows = [{**row, "labels": row["input_ids"]} for row in tiny_rows.rows()]
flatten = DataCollatorWithFlattening()


def flatten_with_mask(batch):
    given = flatten(batch)
    return {**given, "attention_mask": torch.ones_like(given["input_ids"])}


Trainer(
    model=model,
    args=TrainingArguments(per_device_train_batch_size=4, **tiny_rows.QUIET),
    train_dataset=rows,
    data_collator=flatten_with_mask if sys.argv[2:] else flatten,
).train()
