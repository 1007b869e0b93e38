"""Tells the rows of a batch apart by the data set of a trainer of preferences."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from .learnt import PassRecord
from .rows import token_mask

_ROWS, _PASSES, _CANDIDATES, _MOST_TEXTS = 64, 64, 64, 400_000
"""Rows of a batch, passes of a step, texts that a row is compared with, and texts of a data set."""
_END = 16
"""Ids at its end by which a text is found."""


class Sides:
    """The answers of a trainer's data set, by which rows of a batch are told apart.

    Texts are found by their last ids, and then compared whole. What the data set makes of its rows
    is not run.
    """

    def __init__(self, trainer: Any) -> None:
        self._table: Any = getattr(getattr(trainer, "train_dataset", None), "data", None)
        self._names = set(getattr(self._table, "column_names", ()))
        self._cut = getattr(getattr(trainer, "args", None), "max_length", None)
        self._found: dict[Any, Any] = {}

    def of(self, records: list[PassRecord]) -> list[dict[str, Any]]:
        """Return, for the passes of a step, each row's side, prompt and partner.

        The side is 1 for a chosen or desirable answer, −1 for the other, and 0 where it is not
        known; the length of its prompt is null then. The partner is the row with the other answer.
        """
        found: list[dict[str, Any]] = []
        if self._table is None or len(self._table) > _MOST_TEXTS:
            return found
        for record in records[:_PASSES]:
            if record.seen is None:
                continue
            ids = record.seen.ids.cpu()
            keep = token_mask(record.seen.inputs, ids)
            rows = [self._of_row(row[m].tolist()) for row, m in zip(ids[:_ROWS], keep)]
            if any(rows):
                found.append({"micro": record.index, **_told_apart(rows, len(ids) // 2)})
        return found

    def _first_of(self, *names: str) -> str | None:
        return next((name for name in names if name in self._names), None)

    def _of_row(self, row: list[int]) -> list[Any]:
        """Return the texts of the data set that a row is."""
        prompt = self._first_of("prompt_ids", "prompt_input_ids")
        good = self._first_of("chosen_ids", "chosen_input_ids")
        bad = self._first_of("rejected_ids", "rejected_input_ids")
        if good and bad:
            return [
                (at, side, size)
                for side, name in ((1, good), (-1, bad))
                for at, size in self._matches(name, prompt, row)
            ]
        answer = self._first_of("completion_ids", "completion_input_ids", "input_ids")
        label = self._first_of("label", "kto_tags")
        if not answer or not label:
            return []
        return [
            (at, 1 if self._value(label, at) else -1, size)
            for at, size in self._matches(answer, prompt, row)
        ]

    def _matches(self, name: str, prompt: str | None, row: list[int]) -> list[tuple[int, int]]:
        """Return the rows of the table that are this text, with the lengths of their prompts."""
        found: list[tuple[int, int]] = []
        cuts = [None, self._cut, -self._cut] if self._cut and len(row) == self._cut else [None]
        for cut in cuts:
            for at in self._candidates(name, prompt, row, cut):
                ids = list(self._value(name, at))
                asked = list(self._value(prompt, at)) if prompt else []
                begins = _begin(row, ids, asked, self._cut)
                if begins is not None and at not in dict(found):
                    found.append((at, self._by_labels(name, at, row, ids, begins)))
        return found

    def _by_labels(self, name: str, at: int, row: list[int], ids: list[int], begins: int) -> int:
        """Return where an answer begins: of whole rows, what is learnt is in their labels."""
        labels = self._first_of(name.replace("input_ids", "labels"), "labels")
        if labels is None or not name.endswith("input_ids"):
            return begins
        given = list(self._value(labels, at))
        learnt = sum(each != -100 for each in given)
        return len(row) - learnt if len(given) == len(ids) else begins

    def _candidates(
        self, name: str, prompt: str | None, row: list[int], cut: int | None
    ) -> list[int]:
        """Return the rows of the table whose text ends as this one."""
        if (name, cut) not in self._found:
            self._found[name, cut] = self._keys(name, prompt, cut).sort(stable=True)
        keys, order = self._found[name, cut]
        own = _hashed(torch.tensor([[*[-1] * _END, *row][-_END:]], device="cpu"))
        low, high = (int(torch.searchsorted(keys, own, right=right)) for right in (False, True))
        return order[low:high].tolist() if high - low <= _CANDIDATES else []

    def _keys(self, name: str, prompt: str | None, cut: int | None) -> Tensor:
        apart = prompt is not None and not self._has_prompts(name, prompt)
        before = (self._last(prompt, None), self._sizes(prompt)) if apart and prompt else None
        keep = self._sizes(name)
        if cut is not None and cut > 0:
            keep = torch.minimum(keep, (cut - (before[1] if before else 0 * keep)).clamp_min(0))
        last = self._last(name, keep)
        for size in range(_END if before else 0):  # a short answer: the prompt's end comes before
            short = (keep == size).nonzero()[:, 0]
            if before is not None and len(short):
                last[short, : _END - size] = before[0][short, size:]
        if cut is not None and cut < 0:  # its end is kept
            last[:, : max(0, _END + cut)] = -1
        return _hashed(last)

    def _has_prompts(self, name: str, prompt: str) -> bool:
        """Return whether answers have their prompts in them, as CPO's and ORPO's."""
        some = [
            (self._value(name, at), self._value(prompt, at))
            for at in range(min(4, len(self._table)))
        ]
        return all(asked and ids[: len(asked)] == asked for ids, asked in some)

    def _parts(self, name: str) -> list[tuple[Tensor, Tensor]]:
        """Return offsets and values of a column's chunks."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are not to be written to, and are not
            return [
                (
                    torch.from_numpy(chunk.offsets.to_numpy()).long(),
                    torch.from_numpy(chunk.values.to_numpy(zero_copy_only=False)),
                )
                for chunk in self._table.column(name).chunks
            ]

    def _sizes(self, name: str) -> Tensor:
        parts = [offsets.diff() for offsets, _ in self._parts(name)]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long, device="cpu")

    def _last(self, name: str, keep: Tensor | None) -> Tensor:
        """Return the last ids of what is kept of each text; −1 before its first."""
        found, done = [torch.zeros(0, _END, dtype=torch.long, device="cpu")], 0
        for offsets, values in self._parts(name):
            begin, count = offsets[:-1], len(offsets) - 1
            end = offsets[1:] if keep is None else begin + keep[done : done + count]
            at = end[:, None] + torch.arange(-_END, 0, device="cpu")[None]
            there = at >= begin[:, None]
            ids = values[at * there].long() if len(values) else torch.zeros_like(at)
            found.append(ids.where(there, -1))
            done += count
        return torch.cat(found)

    def _value(self, name: str, at: int) -> Any:
        return self._table.column(name)[at].as_py()


def _hashed(last: Tensor) -> Tensor:
    factors = [pow(0x9E3779B97F4A7C15, k + 1, 1 << 63) for k in range(_END)]
    return ((last + 2) * torch.tensor(factors, device="cpu")).sum(1)


def _begin(row: list[int], ids: list[int], asked: list[int], cut: int | None) -> int | None:
    """Return where the answer begins in a row that is it, or ends with it; None: it is not."""
    for text in (asked + ids, ids):
        asks = len(asked) if text[: len(asked)] == asked else 0
        off = len(row) - len(text)
        if 0 <= off <= 2 and ids and row[off:] == text:  # a begin token may be added
            return off + asks
        if off < 0 and len(row) == cut and asks < cut and row == text[:cut]:
            return asks
        if off < 0 and len(row) == cut and row == text[-cut:]:
            return max(0, asks + off)
    return None


def _told_apart(rows: list[list[Any]], half: int) -> dict[str, list[Any]]:
    """Tell rows apart by the texts that they may be."""
    told: dict[int, tuple[int, int]] = {}
    for row, matches in enumerate(rows):
        for other in (row + half, *range(row + 1, len(rows))):
            if row in told or other >= len(rows) or other in told:
                continue
            theirs = {(at, side) for at, side, _ in rows[other]}
            ways = {side for at, side, _ in matches if (at, -side) in theirs}
            if len(ways) == 1:
                side = ways.pop()
                told[row], told[other] = (side, other), (-side, row)
    found: dict[str, list[Any]] = {"side": [], "prompt": [], "partner": []}
    for row, matches in enumerate(rows):
        sides = {side for _, side, _ in matches}
        side, partner = told.get(row, (sides.pop() if len(sides) == 1 else 0, None))
        sizes = [size for _, mine, size in matches if mine == side]
        found["side"].append(side)
        found["prompt"].append(min(sizes) if sizes else None)
        found["partner"].append(partner)
    return found
