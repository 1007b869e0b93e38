"""Runs LLaMA-Factory with a mistake in its trainers of preferences.

usage: llamafactory_preferences.py MISTAKE RECIPE
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from llamafactory.data import collator
from llamafactory.train.dpo.trainer import CustomDPOTrainer
from llamafactory.train.kto.trainer import CustomKTOTrainer
from llamafactory.train.tuner import run_exp

TRAINERS = (CustomDPOTrainer, CustomKTOTrainer)


def another_beta() -> None:
    """Train by another β than the recipe's."""
    for kind in TRAINERS:

        def compute(self: Any, *given: Any, kept: Any = kind.compute_loss, **named: Any) -> Any:
            self.beta = 0.3
            return kept(self, *given, **named)

        kind.compute_loss = compute


def not_divided() -> None:
    """Take the division by the micro-batches back."""
    for kind in TRAINERS:

        def compute(self: Any, *given: Any, kept: Any = kind.compute_loss, **named: Any) -> Any:
            loss = kept(self, *given, **named)
            return loss * self.args.gradient_accumulation_steps

        kind.compute_loss = compute


def means() -> None:
    """Compare the means of answers."""
    kept = CustomDPOTrainer.concatenated_forward

    def forward(self: Any, model: Any, batch: Any, *given: Any, **named: Any) -> Any:
        learnt = (batch["labels"][:, 1:] != -100).sum(1)
        found = kept(self, model, batch, *given, **named)
        for name, size in zip(("chosen_logps", "rejected_logps"), learnt.chunk(2), strict=True):
            found[name] = found[name] / size
        return found

    CustomDPOTrainer.concatenated_forward = forward


def _collated(kind: type, change: Callable[[Any], None]) -> None:
    kept = kind.__call__

    def collate(self: Any, features: Any) -> Any:
        batch = kept(self, features)
        change(batch)
        return batch

    kind.__call__ = collate  # type: ignore[method-assign]


def swapped() -> None:
    """Put the rejected answers first."""

    def change(batch: Any) -> None:
        for name in ("input_ids", "attention_mask", "labels"):
            batch[name] = torch.cat([*reversed(batch[name].chunk(2))])

    _collated(collator.PairwiseDataCollatorWithPadding, change)


def prompts() -> None:
    """Judge prompts with their answers."""

    def change(batch: Any) -> None:
        batch["labels"] = batch["input_ids"].where(batch["attention_mask"] == 1, -100)

    _collated(collator.PairwiseDataCollatorWithPadding, change)


def labels_swapped() -> None:
    """Take desirable answers for undesirable ones."""

    def change(batch: Any) -> None:
        batch["kto_tags"] = ~batch["kto_tags"]

    _collated(collator.KTODataCollatorWithPadding, change)


def itself() -> None:
    """Compute the reference by the policy, and its adapters."""
    for kind in TRAINERS:

        def reference(self: Any, model: Any, batch: Any, own: Any = kind) -> Any:
            with torch.no_grad():
                found = self.concatenated_forward(model, batch)
            if own is CustomKTOTrainer:
                return found[0], found[1], found[4]
            return found["chosen_logps"], found["rejected_logps"]

        kind.compute_reference_log_probs = reference


if __name__ == "__main__":
    mistake = sys.argv.pop(1)
    globals()[mistake]()
    run_exp()
