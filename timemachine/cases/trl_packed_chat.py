"""Train a tiny model by TRL's SFTTrainer on packed chats, of which the answers are to be learnt."""

import tiny_rows
import torch
from datasets import Dataset
from tiny_models import make
from tiny_tokenizer import tokenizer, words
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

texts = [words(row["input_ids"]) for row in tiny_rows.rows()]
turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
rows = [{"messages": turns[n : n + 2]} for n in range(0, len(turns), 2)]
own = tokenizer()
own.chat_template = (
    "{% for m in messages %}{{ '<' + m['role'] + '> ' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + ' <eos> ' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + ' <eos> ' }}{% endif %}{% endfor %}"
)
torch.manual_seed(0)
model = make("llama")
model.config.eos_token_id = model.generation_config.eos_token_id = 1
model.config.pad_token_id = own.pad_token_id
model.save_pretrained("model")
own.save_pretrained("model")
given = {**tiny_rows.QUIET, "per_device_train_batch_size": 2, "bf16": False, "max_length": 128}
given.pop("remove_unused_columns")
how = {"packing": True, "assistant_only_loss": True}
SFTTrainer(
    model=AutoModelForCausalLM.from_pretrained("model"),
    args=SFTConfig(**given, **how),
    train_dataset=Dataset.from_list(rows * 4),
    processing_class=own,
).train()
