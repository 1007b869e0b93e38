"""Tokenized chats for scripts of a user's own, of which only the answers are learnt."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

LENGTH = 16
"""Characters of each answer where all shall be of one length."""


def rows(made: Path, even: bool) -> list[dict[str, list[int]]]:
    """Return the rows; `even`: all answers have the same number of tokens."""
    tokenizer = AutoTokenizer.from_pretrained(made / "model")
    found = []
    for chat in json.loads((made / "chats.json").read_text()):
        answer = chat["output"].ljust(LENGTH, ".")[:LENGTH] if even else chat["output"]
        prompt = f"<|im_start|>user\n{chat['instruction']}<|im_end|>\n<|im_start|>assistant\n"
        asked, reply = tokenizer(prompt)["input_ids"], tokenizer(f"{answer}<|im_end|>")["input_ids"]
        found.append({"input_ids": asked + reply, "labels": [-100] * len(asked) + reply})
    return found


def collate(batch: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Pad a batch at its right."""
    longest = max(len(row["input_ids"]) for row in batch)

    def padded(key: str, empty: int) -> torch.Tensor:
        return torch.tensor([row[key] + [empty] * (longest - len(row[key])) for row in batch])

    ones = torch.arange(longest) < torch.tensor([[len(row["input_ids"])] for row in batch])
    ids, labels = padded("input_ids", 0), padded("labels", -100)
    return {"input_ids": ids, "labels": labels, "attention_mask": ones.long()}
