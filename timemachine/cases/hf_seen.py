"""Train a tiny model that writes what is heard or seen, by transformers' Trainer.

usage: hf_seen.py WHAT       moonshine, cohere_asr, florence2, git, vision_encoder_decoder
"""

import sys

import tiny_rows
import torch
from tiny_models import make
from transformers import Trainer, TrainingArguments

torch.manual_seed(0)
what = sys.argv[1]
GIVEN = {
    "moonshine": {"input_values": (1600,)},
    "cohere_asr": {"input_features": (80, 16)},
    "florence2": {"input_ids": (9,)},
    "git": {"pixel_values": (3, 8, 8)},
    "vision_encoder_decoder": {"pixel_values": (3, 8, 8)},
}[what]


def collate(batch):
    labels = torch.tensor([row["input_ids"] for row in batch])
    given = {name: torch.randn(len(batch), *shape) for name, shape in GIVEN.items()}
    if what == "florence2":
        given["input_ids"] = torch.randint(3, 490, given["input_ids"].shape)
    if what == "git":
        given["input_ids"] = labels
    return {**given, "labels": labels}


Trainer(
    model=make(what),
    args=TrainingArguments(per_device_train_batch_size=4, **tiny_rows.QUIET),
    train_dataset=tiny_rows.rows([12]),
    data_collator=collate,
).train()
