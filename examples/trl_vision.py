"""A stock TRL script: fine-tune a vision-language model on pictures of squares.

usage: python trl_vision.py MODEL     under the watch: vtool watch -- python trl_vision.py MODEL
"""

import random
import sys

from datasets import Dataset
from PIL import Image
from trl import SFTConfig, SFTTrainer

COLORS = ("red", "green", "blue")
draw = random.Random(0)
rows = []
for number in range(48):
    color = COLORS[number % 3]
    answer = " ".join([f"The square is {color}."] * draw.randint(1, 6))
    asked = [{"type": "image"}, {"type": "text", "text": "What do you see?"}]
    messages = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]
    rows.append({"images": [Image.new("RGB", (56, 56), color)], "messages": messages})

SFTTrainer(
    model=sys.argv[1],
    args=SFTConfig(
        output_dir="squares",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        max_steps=4,
        learning_rate=1e-4,
        bf16=False,
        max_length=None,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=Dataset.from_list(rows),
).train()
