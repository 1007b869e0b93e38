"""Train a tiny model by TRL's SFTTrainer.

usage: trl_sft.py text       texts that end in the end token, which is the padding token too
       trl_sft.py chat       chats, as prompt and completion
"""

import sys

import tiny_rows
import torch
from datasets import Dataset
from tiny_models import make
from tiny_tokenizer import tokenizer, words
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

chat = sys.argv[1] == "chat"
texts = [words(row["input_ids"]) for row in tiny_rows.rows()]
if chat:
    turns = [[{"role": role, "content": text}] for text in texts for role in ("user", "assistant")]
    rows = [{"prompt": turns[n], "completion": turns[n + 1]} for n in range(0, len(turns), 2)]
else:
    rows = [{"text": f"{text} <eos>"} for text in texts]
torch.manual_seed(0)
own = tokenizer() if chat else tokenizer("<eos>")
model = make("llama")
model.config.eos_token_id = model.generation_config.eos_token_id = 1
model.config.pad_token_id = own.pad_token_id
model.save_pretrained("model")
own.save_pretrained("model")
given = {**tiny_rows.QUIET, "per_device_train_batch_size": 4, "bf16": False}
given.pop("remove_unused_columns")
SFTTrainer(
    model=AutoModelForCausalLM.from_pretrained("model"),
    args=SFTConfig(**given),
    train_dataset=Dataset.from_list(rows),
    processing_class=own,
).train()
