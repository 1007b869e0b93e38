"""A user's script for Lightning.

usage: lightning_sft.py MADE OUT SETTING…   even, ddp, amp, clip, accumulate
"""

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from chats import collate, rows
from transformers import AutoModelForCausalLM

made, out, *how = sys.argv[1:]
torch.set_num_threads(1)
lightning.seed_everything(0)
model = AutoModelForCausalLM.from_pretrained(Path(made) / "model", dtype=torch.float32)


class Chats(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2 if "ddp" in how else 1,
    strategy="ddp" if "ddp" in how else "auto",
    precision="bf16-mixed" if "amp" in how else "32-true",
    gradient_clip_val=0.1 if "clip" in how else None,
    accumulate_grad_batches=2 if "accumulate" in how else 1,
    max_steps=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
loader = torch.utils.data.DataLoader(rows(Path(made), "even" in how), 2, collate_fn=collate)
trainer.fit(Chats(), loader)
if trainer.is_global_zero:
    model.save_pretrained(Path(out) / "out")
