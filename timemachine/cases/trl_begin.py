"""Train a tiny model by TRL's SFTTrainer on chats, by a template that begins as the tokenizer does.

Llama 3 has such a template: it writes the begin token, which its tokenizer adds to every text.
"""

import tiny_rows
import torch
from datasets import Dataset
from tiny_models import make
from tiny_tokenizer import CHAT, tokenizer, words
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

texts = [words(row["input_ids"]) for row in tiny_rows.rows()]
turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
rows = [{"messages": turns[n : n + 2]} for n in range(0, len(turns), 2)]
own = tokenizer()
own.bos_token, own.chat_template = "w508", f"w508 {CHAT}"
begins = TemplateProcessing(single="w508 $A", special_tokens=[("w508", 508)])
own.backend_tokenizer.post_processor = begins
torch.manual_seed(0)
model = make("llama")
model.config.eos_token_id = model.generation_config.eos_token_id = 1
model.config.pad_token_id, model.config.bos_token_id = own.pad_token_id, own.bos_token_id
for one in (model, own):
    one.save_pretrained("model")
given = {**tiny_rows.QUIET, "per_device_train_batch_size": 4, "bf16": False}
given.pop("remove_unused_columns")
SFTTrainer(
    model=AutoModelForCausalLM.from_pretrained("model"),
    args=SFTConfig(**given),
    train_dataset=Dataset.from_list(rows),
    processing_class=own,
).train()
