"""Losses that go wrong on one rank."""

from typing import Any

from tests.watch.runs.loop import cross_entropy


def negated_on_a_rank(logits: Any, labels: Any, model: Any) -> Any:
    import torch.distributed as dist

    sign = -1 if dist.get_rank() == 1 else 1
    return sign * cross_entropy(logits, labels, model)
