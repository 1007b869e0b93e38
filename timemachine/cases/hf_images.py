"""Train a tiny vision-language model by transformers' Trainer on rows with an image each.

usage: hf_images.py MODEL_TYPE
"""

import sys

import tiny_rows
import torch
from tiny_models import make
from transformers import Trainer, TrainingArguments

IMAGE, BEGIN = 500, 502


def rows():
    for row in tiny_rows.rows():
        ids = row["input_ids"]
        yield {"input_ids": [*ids[:3], BEGIN, *[IMAGE] * 4, *ids[3:]]}


def collate(batch):
    given = tiny_rows.collate(batch)
    there = given["input_ids"] == IMAGE
    given["labels"] = given["labels"].masked_fill(given["input_ids"] >= IMAGE, -100)
    patches = 3 * 2 * model.config.vision_config.patch_size**2
    return {
        **given,
        "mm_token_type_ids": there.long(),
        "pixel_values": torch.rand(16 * len(batch), patches),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * len(batch)),
    }


torch.manual_seed(0)
model = make(sys.argv[1])
arguments = TrainingArguments(per_device_train_batch_size=4, **tiny_rows.QUIET)
Trainer(
    model=model, args=arguments, train_dataset=list(rows()), data_collator=collate
).train()  # fmt: skip
