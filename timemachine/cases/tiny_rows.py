"""Rows of random tokens, a collator, and the settings of a short and quiet run on a CPU."""

import random

import torch

QUIET = {
    "output_dir": "out", "max_steps": 2, "learning_rate": 1e-3, "report_to": [],
    "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "remove_unused_columns": False,
}  # fmt: skip


def rows(lengths=range(5, 41), number=24):
    draw = random.Random(0)
    drawn = [draw.choice(lengths) for _ in range(number)]
    return [{"input_ids": draw.choices(range(3, 490), k=length)} for length in drawn]


def collate(batch):
    """Pad rows with 0; all but the first three tokens of each are learnt."""
    longest = max(len(row["input_ids"]) for row in batch)
    padded = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in batch]
    ids = torch.tensor(padded)
    labels = ids.masked_fill(ids == 0, -100)
    labels[:, :3] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": (ids != 0).long()}


def collate_gemma3(batch):
    """Collate as Gemma 3's processor does: with 1 where an image is, and these rows have none."""
    given = collate(batch)
    return {**given, "token_type_ids": torch.zeros_like(given["input_ids"])}


def collate_paligemma(batch):
    """Collate as PaliGemma's processor does: with 1 where an answer is."""
    given = collate(batch)
    return {**given, "token_type_ids": (given["labels"] != -100).long()}
