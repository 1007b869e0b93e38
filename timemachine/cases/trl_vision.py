"""Train a tiny LLaVA by TRL's SFTTrainer on chats with an image, with TRL's own settings."""

import torch
from datasets import Dataset
from PIL import Image
from tiny_rows import QUIET
from transformers import AutoModelForImageTextToText
from trl import SFTConfig, SFTTrainer

from tests.watch.tiny_llava import make

make("model")
torch.manual_seed(0)
rows = []
for color in ("red", "green", "blue", "white") * 3:
    asked = [{"type": "image"}, {"type": "text", "text": "What do you see?"}]
    answer = [{"type": "text", "text": f"The square is {color}."}]
    chat = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    rows.append({"images": [Image.new("RGB", (56, 56), color)], "messages": chat})
given = {**QUIET, "per_device_train_batch_size": 2, "bf16": False, "max_length": None}
given.pop("remove_unused_columns")
SFTTrainer(
    model=AutoModelForImageTextToText.from_pretrained("model"),
    args=SFTConfig(**given),
    train_dataset=Dataset.from_list(rows),
).train()
