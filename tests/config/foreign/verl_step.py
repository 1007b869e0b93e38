"""A plug-in of verl that writes its first step to VERL_STEP, and ends the process.

It is named in VERL_USE_EXTERNAL_MODULES behind `verl_on_cpu`; `RowsOfTokens` is its data set. The
file has the micro-batches as verl makes them, the trained parameters as they were before, the loss
and the norm.
"""

import os
import random
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead

LENGTHS = (12, 24, 31)
"""Rows of several lengths: verl's loss is a mean over the tokens of a step, as vtool's is."""


class RowsOfTokens(Dataset):
    """256 rows that are tokens already, the first eight of which are not learnt."""

    def __init__(self, *_: Any, **__: Any) -> None:
        draw = random.Random(0)
        self.rows = [
            torch.tensor([draw.randint(20, 90) for _ in range(draw.choice(LENGTHS))])
            for _ in range(256)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self.rows[index]
        places = torch.arange(len(ids))
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "position_ids": places,
            "loss_mask": (places >= 8).long(),
        }


def _record() -> None:
    forward, optimize = FSDPEngineWithLMHead.forward_step, FSDPEngine.optimizer_step
    batches: list[dict[str, list[Tensor]]] = []
    losses: list[float] = []
    begun: dict[str, Tensor] = {}

    def whole(value: Tensor) -> Tensor:
        return value.full_tensor() if hasattr(value, "full_tensor") else value

    def forward_step(self: Any, micro_batch: Any, *given: Any, **named: Any) -> Any:
        if not begun:
            parameters = self.module.named_parameters()
            begun.update((n, whole(p.detach()).clone()) for n, p in parameters if p.requires_grad)
        kept = ("input_ids", "loss_mask")
        batches.append({name: [row.clone() for row in micro_batch[name].unbind()] for name in kept})
        loss, output = forward(self, micro_batch, *given, **named)
        losses.append(float(loss.detach()))
        return loss, output

    def optimizer_step(self: Any) -> Any:
        norm = float(optimize(self))
        found = {"batches": batches, "begun": begun, "loss": sum(losses), "norm": norm}
        torch.save(found, os.environ["VERL_STEP"])
        os._exit(0)

    FSDPEngineWithLMHead.forward_step = forward_step
    FSDPEngine.optimizer_step = optimizer_step


if "VERL_STEP" in os.environ:
    _record()
