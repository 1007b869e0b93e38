"""Train a tiny model by a trainer of preferences, in steps of four micro-batches.

usage: trl_preferences.py dpo|kto|bco|cpo
"""

import sys

import tiny_rows
import torch
import trl
from datasets import Dataset
from tiny_models import make
from tiny_tokenizer import tokenizer, words

kind = sys.argv[1]
texts = [f" {words(row['input_ids'])}" for row in tiny_rows.rows(range(5, 16), 96)]
prompts, chosen, rejected = texts[:32], texts[32:64], texts[64:]
rows, given = {"prompt": prompts, "chosen": chosen, "rejected": rejected}, {}
if kind in ("kto", "bco"):
    rows = {"prompt": prompts * 2, "completion": chosen + rejected}
    rows["label"] = [n % 2 == 0 for n in range(64)]
torch.manual_seed(0)
model = make("llama")
model.config.pad_token_id = tokenizer().pad_token_id
if kind in ("dpo", "kto", "bco"):
    torch.manual_seed(0)
    given = {"ref_model": make("llama")}
arguments = {**tiny_rows.QUIET, "max_length": 64, "max_prompt_length": 32, "beta": 0.1}
arguments |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 3}
trainer, config = (getattr(trl, f"{kind.upper()}{end}") for end in ("Trainer", "Config"))
trainer(
    model=model,
    args=config(**arguments),
    train_dataset=Dataset.from_dict(rows),
    processing_class=tokenizer(),
    **given,
).train()
