"""Train a tiny model for three epochs by accelerate, in an order that a sampler of one's own has.

usage: torchrun --nproc-per-node 2 accelerate_epochs.py
"""

import tiny_rows
import torch
from accelerate import Accelerator
from tiny_models import make
from torch.utils.data import DataLoader, Sampler

ROWS = tiny_rows.rows([12], 48)


class ByEpoch(Sampler):
    """An order for each epoch, the same on all ranks."""

    epoch = 0

    def __len__(self):
        return len(ROWS)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(len(ROWS), generator=torch.Generator().manual_seed(self.epoch)))


torch.manual_seed(0)
accelerator, model = Accelerator(cpu=True), make("llama")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = DataLoader(ROWS, 4, sampler=ByEpoch(), collate_fn=tiny_rows.collate)
model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
for epoch in range(3):
    rows.set_epoch(epoch)
    for batch in rows:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
