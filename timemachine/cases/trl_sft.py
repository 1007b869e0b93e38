"""Train a tiny model by TRL's SFTTrainer on texts that end in the end token.

usage: trl_sft.py text       the padding token is the end token
"""

import tiny_rows
import torch
from datasets import Dataset
from tiny_models import make
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = ["<unk>", "<eos>", *(f"w{number}" for number in range(2, 512))]
tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
)
texts = [" ".join(words[n] for n in row["input_ids"]) + " <eos>" for row in tiny_rows.rows()]
torch.manual_seed(0)
model = make("llama")
model.config.eos_token_id = model.generation_config.eos_token_id = 1
model.config.pad_token_id = 1
given = {**tiny_rows.QUIET, "per_device_train_batch_size": 4, "bf16": False}
given.pop("remove_unused_columns")
SFTTrainer(
    model=model,
    args=SFTConfig(**given),
    train_dataset=Dataset.from_list([{"text": text} for text in texts]),
    processing_class=tokenizer,
).train()
