"""Masks that batches and rows are given."""

from typing import Any

from tests.watch.runs.loop import END, START, Batch, Row


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


def blocks(batch: Batch) -> Batch:
    """Let each token of a packed row see those before it of its own text alone."""
    import torch

    text = (batch["position_ids"] == 0).cumsum(-1)
    n = text.shape[1]
    seen = torch.ones(n, n).tril().bool() & (text[:, :, None] == text[:, None, :])
    return batch | {"attention_mask": seen[:, None]}


def blocks_of_wide_positions(batch: Batch) -> Batch:
    """Count on by one in the first text of a packed row, by two in the second, and so on."""
    text = (batch["position_ids"] == 0).cumsum(-1)
    return blocks(batch) | {"position_ids": text.cumsum(-1) - 1}


def padding_unmasked(model: Any) -> None:
    """Let the model make a mask of four dimensions that forgets the padding."""
    import torch

    def unmask(module: Any, args: Any, given: Batch) -> Any:
        n = given["input_ids"].shape[1]
        seen = torch.ones(n, n).tril().bool()[None, None].repeat(len(given["input_ids"]), 1, 1, 1)
        embedded = module.embed_tokens(given["input_ids"])
        own = {"input_ids": None, "inputs_embeds": embedded, "attention_mask": seen}
        return args, {**given, **own}

    model.model.register_forward_pre_hook(unmask, with_kwargs=True)


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


def positions_of_nought(batch: Batch) -> Batch:
    import torch

    return batch | {"position_ids": torch.zeros_like(batch["input_ids"])}


def _pairs(batch: Batch) -> Any:
    """Return where both of two places of a row have text, [rows, queries, keys]."""
    there = batch["attention_mask"].bool()
    return there[:, None, :] & there[:, :, None]


def seen_both_ways(batch: Batch) -> Batch:
    """Make the mask from the padding alone."""
    return batch | {"attention_mask": _pairs(batch)[:, None]}


def prompt_seen_both_ways(batch: Batch) -> Batch:
    """Let tokens of prompts see each other, and answers only what is before them."""
    import torch

    length = batch["input_ids"].shape[1]
    sees = (
        torch.ones(length, length, dtype=torch.bool).tril()[None].repeat(len(batch["labels"]), 1, 1)
    )
    for row, labels in enumerate(batch["labels"]):
        begin = int((labels >= 0).nonzero()[0])
        sees[row, :begin, :begin] = True
    sees &= _pairs(batch)
    sees.diagonal(dim1=1, dim2=2).fill_(True)
    return batch | {"attention_mask": sees[:, None]}


def not_causal(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.is_causal = False


def without_prompts(batch: Batch) -> Batch:
    """Make the mask from the labels."""
    return batch | {"attention_mask": (batch["labels"] != -100).long()}


def begin_twice(rows: list[Row]) -> list[Row]:
    return [
        {"input_ids": [START, *row["input_ids"]], "labels": [-100, *row["labels"]]} for row in rows
    ]


def end_twice(rows: list[Row]) -> list[Row]:
    return [{key: [*values[:-1], END] for key, values in row.items()} for row in rows]


def cut_off(rows: list[Row]) -> list[Row]:
    """Cut each row within its answer."""
    return [{key: values[:-3] for key, values in row.items()} for row in rows]


def most_cut_off(rows: list[Row]) -> list[Row]:
    return [row if at % 4 == 3 else cut_off([row])[0] for at, row in enumerate(rows)]


def nothing_of_every_second(rows: list[Row]) -> list[Row]:
    """Leave nothing to learn in the rows of the second of two ranks."""
    return [
        {**row, "labels": [-100] * len(row["labels"])} if at % 2 else row
        for at, row in enumerate(rows)
    ]


def half_of_answers(rows: list[Row]) -> list[Row]:
    """Leave the first half of each answer out, but for its first token."""

    def half(row: Row) -> Row:
        on = [at for at, label in enumerate(row["labels"]) if label != -100]
        out = set(on[1 : len(on) // 2 + 1])
        labels = [-100 if at in out else label for at, label in enumerate(row["labels"])]
        return {**row, "labels": labels}

    return [half(row) for row in rows]
