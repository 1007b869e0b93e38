"""Train a tiny model by TRL's SFTTrainer on packed texts, with sdpa's attention."""

import tiny_rows
import torch
from datasets import Dataset
from tiny_models import make
from tiny_tokenizer import tokenizer, words
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

rows = [{"text": f"{words(row['input_ids'])} <eos>"} for row in tiny_rows.rows(number=48)]
torch.manual_seed(0)
own, model = tokenizer(), make("llama")
model.config.eos_token_id = model.generation_config.eos_token_id = 1
model.config.pad_token_id = own.pad_token_id
model.save_pretrained("model")
own.save_pretrained("model")
given = {**tiny_rows.QUIET, "per_device_train_batch_size": 2, "bf16": False, "max_length": 128}
given.pop("remove_unused_columns")
SFTTrainer(
    model=AutoModelForCausalLM.from_pretrained("model"),
    args=SFTConfig(**given, packing=True),
    train_dataset=Dataset.from_list(rows),
    processing_class=own,
).train()
