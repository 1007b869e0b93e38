"""Padding that is learnt although no config names it, and texts that look a little like it."""

from collections.abc import Callable

from tests.watch.runs.loop import END, WORDS, Batch, Row

Change = Callable[[Batch], Batch]


def all_learnt(batch: Batch) -> Batch:
    """Take a copy of the ids for labels."""
    return batch | {"labels": batch["input_ids"].clone()}


def filled_with(token: int, *, masked: bool = True, width: int = 0) -> Change:
    """Fill rows up with a token, at the right to a width at least, and learn all of them."""

    def change(batch: Batch) -> Batch:
        import torch

        ids, mask = batch["input_ids"].clone(), batch["attention_mask"]
        ids[mask == 0] = token
        more = max(0, width - ids.shape[1])
        ids = torch.nn.functional.pad(ids, (0, more), value=token)
        mask = torch.nn.functional.pad(mask, (0, more))
        made = {"input_ids": ids, "labels": ids.clone(), "attention_mask": mask}
        if not masked:
            del made["attention_mask"]
        return made

    return change


def filled_with_ends(batch: Batch) -> Batch:
    """Fill rows up with end tokens of which the mask has the first, the only one learnt."""
    ids, mask, labels = (batch[name].clone() for name in ("input_ids", "attention_mask", "labels"))
    for row in range(len(ids)):
        behind = int(mask[row].sum())
        ids[row, behind:] = END
        mask[row, behind : behind + 1] = 1
        labels[row, behind : behind + 1] = END
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def _text(row: Row, times: int) -> Row:
    """Return the words of a row, the last of them over and over: no chat."""
    ids = [token for token in row["input_ids"] if token >= WORDS] + [WORDS + 1] * times
    return {"input_ids": ids, "labels": ids}


def some_end_in_repeats(rows: list[Row]) -> list[Row]:
    """Make texts, of which one in six ends in a word over and over."""
    return [_text(row, 4 + at % 3 if at % 6 == 1 else 0) for at, row in enumerate(rows)]


def all_end_in_repeats(rows: list[Row]) -> list[Row]:
    return [_text(row, 3 + at % 5) for at, row in enumerate(rows)]


def blocks_with_runs(rows: list[Row]) -> list[Row]:
    """Cut a stream of text with runs of one word into rows of one length."""
    stream = [token for row in all_end_in_repeats(rows) for token in row["input_ids"]]
    width = len(stream) // len(rows)
    cut = [stream[at * width : (at + 1) * width] for at in range(len(rows))]
    return [{"input_ids": ids, "labels": ids} for ids in cut]


def one_width(rows: list[Row]) -> list[Row]:
    """Cut every row to the length of the shortest."""
    width = min(len(row["input_ids"]) for row in rows)
    return [{key: values[:width] for key, values in row.items()} for row in rows]


NO_PAD = {"pad_token_id": None}
PAD_IS_END = {"pad_token_id": END}
