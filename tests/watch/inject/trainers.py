"""A user's script that knows nothing of the watch, and prints a digest of its final weights.

usage: trainers.py hf|sft|dpo|grpo SETTING…   amp, checkpointing, lora, packing, bf16
"""

import copy
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
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<unk>": 1, "<end>": 2, **{f"w{k}": k for k in range(3, 128)}}
    inner = Tokenizer(models.WordLevel(words, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<end>", pad_token="<pad>"
    )
    adapter = LoraConfig(r=4, target_modules=["q_proj"]) if "lora" in how else None

    def text(ids: list[int]) -> str:
        return " ".join(f"w{k}" for k in ids)

    if kind == "sft":
        from trl import SFTConfig, SFTTrainer

        packed = {"packing": True, "max_length": 64} if "packing" in how else {}
        SFTTrainer(
            model=model,
            args=SFTConfig(**common, **packed),
            train_dataset=Dataset.from_list([{"input_ids": row["input_ids"]} for row in rows]),
            processing_class=tokenizer,
            peft_config=adapter,
        ).train()
    elif kind == "dpo":
        from trl import DPOConfig, DPOTrainer

        pairs = [
            {
                "prompt": text(row["input_ids"][:3]),
                "chosen": " " + text(row["input_ids"][3:-1]),
                "rejected": " " + text(row["input_ids"][-2:2:-1]),
            }
            for row in rows
        ]
        DPOTrainer(
            model=model,
            # Built from a name else, and this model has none.
            ref_model=None if adapter else copy.deepcopy(model),
            args=DPOConfig(**common),
            train_dataset=Dataset.from_list(pairs),
            processing_class=tokenizer,
            peft_config=adapter,
        ).train()
    else:
        from trl import GRPOConfig, GRPOTrainer

        def reward(completions: list[str], **_: Any) -> list[float]:
            return [float(len(set(each.split()))) for each in completions]

        common["gradient_accumulation_steps"] = 2
        GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=GRPOConfig(**common, num_generations=4, max_completion_length=8),
            train_dataset=Dataset.from_list(
                [{"prompt": text(row["input_ids"][:4])} for row in rows]
            ),
            processing_class=tokenizer,
            peft_config=adapter,
        ).train()
weights = hashlib.sha256()
for p in model.parameters():
    weights.update(p.detach().contiguous().view(torch.uint8).numpy().tobytes())
print("weights", weights.hexdigest())
