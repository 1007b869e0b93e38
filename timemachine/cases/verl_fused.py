"""Train by verl's fused head, which makes log p of the answers from the last hidden states.

usage: verl_fused.py FOLDER_OF_VERL
"""

import importlib.util
import sys

import tiny_rows
import torch
from tiny_models import make

at = f"{sys.argv[1]}/verl/utils/experimental/torch_functional.py"
spec = importlib.util.spec_from_file_location("fused", at)
spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
head = module.FusedLinearForPPO()
torch.manual_seed(0)
model = make("llama")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = tiny_rows.rows(number=16)
for step in range(4):
    batch = tiny_rows.collate(rows[4 * step : 4 * step + 4])
    labels = batch.pop("labels")[:, 1:]
    hidden = model.model(**batch).last_hidden_state[:, :-1]
    log_probs, _ = head(hidden, model.lm_head.weight, labels.clamp_min(0))
    learnt = labels != -100
    loss = -(log_probs * learnt).sum() / learnt.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
