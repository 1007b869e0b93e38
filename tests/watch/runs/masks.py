"""Masks that batches and rows are given."""

from tests.watch.runs.loop import Batch, Row


def mask_turned_round(batch: Batch) -> Batch:
    return batch | {"attention_mask": 1 - batch["attention_mask"]}


def mask_that_counts(batch: Batch) -> Batch:
    """Number the rows of a batch, as packed trainers do."""
    import torch

    number = torch.arange(len(batch["input_ids"]))[:, None] + 1
    return batch | {"attention_mask": batch["attention_mask"] * number}


def mask_of_four_dimensions(batch: Batch) -> Batch:
    import torch

    n = batch["input_ids"].shape[1]
    seen = torch.ones(n, n).tril().bool() & (batch["attention_mask"] != 0)[:, None, :]
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    return batch | {"attention_mask": added[:, None]}


def mask_of_another_row(batch: Batch) -> Batch:
    return batch | {"attention_mask": batch["attention_mask"].flip(0)}


def labels_of_another_row(batch: Batch) -> Batch:
    labels = batch["labels"].roll(1, 0)
    labels[batch["attention_mask"] == 0] = -100
    return batch | {"labels": labels}


def nothing_of_some_rows(rows: list[Row]) -> list[Row]:
    """Leave every third row without a learnt token."""
    return [
        {**row, "labels": [-100] * len(row["labels"])} if number % 3 == 1 else row
        for number, row in enumerate(rows)
    ]


def headers_learnt(rows: list[Row]) -> list[Row]:
    """The header before each answer is learnt with it."""

    def taught(row: Row) -> Row:
        labels = list(row["labels"])
        for at in range(3, len(labels)):
            if labels[at] != -100 and labels[at - 1] == -100:
                labels[at - 3 : at] = row["input_ids"][at - 3 : at]
        return {**row, "labels": labels}

    return [taught(row) for row in rows]
