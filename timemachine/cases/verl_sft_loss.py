"""Train by verl's SFT loss on micro-batches of answers of unequal length.

usage: verl_sft_loss.py FOLDER_OF_VERL
"""

import sys
from types import SimpleNamespace

import tiny_rows
import torch
from take import take
from tiny_models import make

torch.manual_seed(0)
verl = f"{sys.argv[1]}/verl"
means = {}
for name in ("masked_sum", "masked_mean"):
    means[name] = take(f"{verl}/utils/torch_functional.py", name, torch=torch, **means)
loss_of = take(
    f"{verl}/workers/roles/utils/losses.py", "sft_loss", torch=torch, **means,
    tu=SimpleNamespace(get_non_tensor_data=lambda data, key, default: "right"),
    DatasetPadMode=SimpleNamespace(NO_PADDING="no_padding"),
)  # fmt: skip
model = make("llama")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = tiny_rows.rows(number=16)
for step in range(2):
    optimizer.zero_grad()
    batches = [tiny_rows.collate(rows[n : n + 2]) for n in range(8 * step, 8 * step + 8, 2)]
    total = sum(int((one["labels"] != -100).sum()) for one in batches)
    for one in batches:
        labels = one.pop("labels")[:, 1:]
        logits = model(**one).logits[:, :-1].log_softmax(-1)
        log_probs = logits.gather(-1, labels.clamp_min(0)[..., None])[..., 0]
        data = {"response_mask": labels != -100, "dp_size": 1, "batch_num_tokens": total}
        loss_of(None, {"log_probs": log_probs}, data)[0].backward()
    optimizer.step()
