"""A user's script that knows nothing of the watch, and prints a digest of its final weights.

usage: trainers.py hf|sft SETTING…   amp, checkpointing, lora, packing, bf16
"""

import hashlib
import random
import sys
import tempfile
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

kind, *how = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
config = Qwen2Config(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.1,
    eos_token_id=2,
    pad_token_id=0,
)
model: Any = Qwen2ForCausalLM(config)
if "bf16" in how:
    model = model.to(torch.bfloat16)
draw = random.Random(0)
rows = []
for _ in range(16):
    ids = [draw.randrange(4, 128) for _ in range(draw.randrange(6, 30))] + [2]
    rows.append({"input_ids": ids, "labels": [-100] * 3 + ids[3:]})


def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in batch)
    pads = {"input_ids": 0, "labels": -100}
    made = {
        key: torch.tensor([row[key] + [pad] * (longest - len(row[key])) for row in batch])
        for key, pad in pads.items()
    }
    return {**made, "attention_mask": (made["input_ids"] != 0).long()}


common: dict[str, Any] = {
    "output_dir": tempfile.mkdtemp(),
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 3,
    "max_steps": 2,
    "learning_rate": 1e-3,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
    "bf16": "amp" in how,
    "gradient_checkpointing": "checkpointing" in how,
}
if kind == "hf":
    arguments = TrainingArguments(remove_unused_columns=False, **common)
    Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate).train()
else:
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = {"<pad>": 0, "<unk>": 1, "<end>": 2, **{f"w{k}": k for k in range(3, 128)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "<unk>")),
        eos_token="<end>",
        pad_token="<pad>",
    )
    packed = {"packing": True, "max_length": 64} if "packing" in how else {}
    SFTTrainer(
        model=model,
        args=SFTConfig(**common, **packed),
        train_dataset=Dataset.from_list([{"input_ids": row["input_ids"]} for row in rows]),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, target_modules=["q_proj"]) if "lora" in how else None,
    ).train()
weights = hashlib.sha256()
for p in model.parameters():
    weights.update(p.detach().contiguous().view(torch.uint8).numpy().tobytes())
print("weights", weights.hexdigest())
