"""Train by the method of verl's FSDP SFT trainer that makes the loss of a micro-batch.

usage: verl_fsdp_sft.py FOLDER_OF_VERL
"""

import contextlib
import sys
from types import SimpleNamespace

import torch
from take import take
from tiny_models import make
from torch import nn

torch.manual_seed(0)
model = make("llama")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
method = take(
    f"{sys.argv[1]}/verl/trainer/fsdp_sft_trainer.py", "_compute_loss_and_backward",
    "FSDPSFTTrainer", torch=torch, nn=nn, nullcontext=contextlib.nullcontext,
)  # fmt: skip
trainer = SimpleNamespace(
    use_remove_padding=False, device_name="cpu", fsdp_model=model, model=model,
    config=SimpleNamespace(
        ulysses_sequence_parallel_size=1, data=SimpleNamespace(balance_dp_token=False)
    ),
)  # fmt: skip
for _ in range(2):
    optimizer.zero_grad()
    for _ in range(4):
        ids = torch.randint(3, 490, (2, 12))
        mask = ids.ne(0).long() * (torch.arange(12) >= 4)
        places = torch.arange(12).expand(2, -1)
        batch = {"input_ids": ids, "attention_mask": ids.ne(0).long(), "position_ids": places}
        count = {"n_micro_batches": 4} if "n_micro" in str(method.__code__.co_varnames) else {}
        method(trainer, batch={**batch, "loss_mask": mask}, **count)
    optimizer.step()
