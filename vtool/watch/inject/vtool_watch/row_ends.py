"""One id over and over at the ends of rows, as padding is: how much of it is learnt, in each row.

Which id is padding need not be known: some models' configs name none, or another one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

REPEATED = 3
"""So many of an id are a run: a text may end with its end token twice."""


def row_ends(
    ids: Tensor, live: Tensor, sure: Tensor, target: Tensor, mask: Tensor | None
) -> dict[str, Any]:
    """Return the runs of one id with which rows end, or begin, and that are learnt.

    Args:
        ids: [rows, positions].
        live: where what follows is learnt, of the same shape.
        sure: where `target` is the token that is learnt, of the same shape.
        target: the token that is learnt, of the same shape.
        mask: where the batch's own mask has text; None where it has none, or one of another kind.
    """
    length = ids.shape[1]
    teaching = live.any(1)
    behind, before = runs_at_ends(ids)
    columns = torch.arange(length, device=ids.device)
    found: dict[str, Any] = {
        "rows": int(teaching.sum()),
        "to_the_end": int(live[:, -2:].any(1).sum()),
    }
    hidden = None if mask is None else ~mask
    for name, column, run in (("ends", -1, behind), ("begins", 0, before)):
        token = ids[:, column]
        # a place teaches the one behind it
        places = columns >= length - 1 - run[:, None] if column else columns < run[:, None] - 1
        there = live & places & (columns < length - 1)
        not_null: list[list[int | None]] = []
        for row in ((there.sum(1) >= REPEATED) & (run >= REPEATED)).nonzero()[:, 0].tolist():
            read = there[row] & sure[row] & (target[row] == token[row])
            out = None if hidden is None else int((there[row] & hidden[row]).sum())
            counts = int(run[row]), int(there[row].sum()), int(read.sum()), out
            not_null.append([int(token[row]), *counts])
        found[name] = not_null
    tokens = {int(one[0]) for one in (*found["ends"], *found["begins"])}
    found["within"] = {str(token): _rows_within(ids, token, behind, before) for token in tokens}
    return found


def runs_at_ends(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return how often each row's last id stands at its end, and its first at its beginning."""
    behind = (ids.flip(1) == ids[:, -1:]).long().cumprod(1).sum(1)
    before = (ids == ids[:, :1]).long().cumprod(1).sum(1)
    return behind, before


def repeated_places(ids: Tensor) -> Tensor:
    """Return the places of runs at the ends of rows, of both sides."""
    behind, before = (run[:, None] for run in runs_at_ends(ids))
    columns = torch.arange(ids.shape[1], device=ids.device)
    last = (columns >= ids.shape[1] - behind) & (behind >= REPEATED)
    return last | ((columns < before) & (before >= REPEATED))


def _rows_within(ids: Tensor, token: int, behind: Tensor, before: Tensor) -> int:
    """Count the rows that have a run of a token between their ends."""
    here = ids == token
    if ids.shape[1] < REPEATED:
        return 0
    run = here[:, 2:] & here[:, 1:-1] & here[:, :-2]
    first = torch.arange(run.shape[1], device=ids.device)
    inside = (first >= before[:, None]) & (first + REPEATED <= ids.shape[1] - behind[:, None])
    return int((run & inside).any(1).sum())
