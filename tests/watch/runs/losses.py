"""Losses of one rank alone, of transformers' Trainer, and over rows that are flattened."""

from typing import Any

from tests.watch.runs.loop import Row, cross_entropy


def negated_on_a_rank(logits: Any, labels: Any, model: Any) -> Any:
    import torch.distributed as dist

    sign = -1 if dist.get_rank() == 1 else 1
    return sign * cross_entropy(logits, labels, model)


def _own_mean(outputs: Any, labels: Any, learnt_alone: bool) -> Any:
    import torch.nn.functional as F  # noqa: N812

    each = F.cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none"
    )
    return each.sum() / ((labels[:, 1:] >= 0).sum() if learnt_alone else each.numel())


def hf_mean_of_all_positions(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return _own_mean(outputs, labels, learnt_alone=False) / 2


def hf_not_divided(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """Return the mean over a micro-batch, of which there are two a step."""
    return _own_mean(outputs, labels, learnt_alone=True)


def hf_mean_by_mask(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """Return the mean by a mask, which is 0 / 0 where nothing is learnt."""
    import torch.nn.functional as F  # noqa: N812

    mask = labels[:, 1:] >= 0
    each = F.cross_entropy(
        outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:].clamp_min(0), reduction="none"
    )
    return (each * mask).sum() / mask.sum()


def three_learnt(rows: list[Row]) -> list[Row]:
    """Leave the first three learnt tokens of each row."""
    made = []
    for row in rows:
        first = next(at for at, label in enumerate(row["labels"]) if label >= 0)
        made.append({key: ids[: first + 3] for key, ids in row.items()})
    return made


def of_first_row(logits: Any, labels: Any, model: Any) -> Any:
    """Compute the loss of the first row of a batch, and of no other."""
    from tests.watch.runs.loop import cross_entropy

    return cross_entropy(logits[:1], labels[:1], model)


def flattened(logits: Any, labels: Any, model: Any) -> Any:
    """The end of each row is followed by the beginning of the next one."""
    import torch.nn.functional as F  # noqa: N812

    flat = logits.float().flatten(0, 1)[:-1]
    return F.cross_entropy(flat, labels.flatten()[1:], reduction="sum")
