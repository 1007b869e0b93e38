"""The targets and weights of a micro-batch: the fields of `micro`, from the solved positions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .borders import border_facts
from .digests import digest_of_bytes, tensor_bytes
from .model import FoundModel
from .places import multiplies_in_tf32
from .row_ends import repeated_places, row_ends
from .rows import KeptBatch, documents, pair_facts, token_mask
from .solve import SLACK, Solution

_ROUNDING = {
    "torch.float64": 2.0
    ** -24,  # norms of transformers, and many losses, are in float32 all the same
    "torch.float32": 2.0**-24,
    "torch.float16": 2.0**-12,
    "torch.bfloat16": 2.0**-9,
}
"""One rounding of an arithmetic, as the tolerances were measured with."""
_ROWS, _TOKENS, MICROS, _TARGETS = 4, 2048, 2, 32
"""Bounds on what is written of single tokens."""
_ERRORS, _USUAL, _SAME = 6.0, 8.0, 1e-3
"""Standard errors that a weight may be off by; how much worse than usual a weight may be known to
be compared; a ratio of weights that nobody would ask for on purpose."""


@dataclass
class PassRecord:
    """A forward and backward pass of the model, as far as it was seen."""

    index: int
    shape: tuple[int, ...]
    autocast: str | None
    names: list[str]
    dropout: str | None
    """`on`, or `off` in evaluation mode; None: the model has none."""
    seen: KeptBatch | None
    inner: dict[str, Any] | None = None
    """The record of `InnerNorm` for the pass."""
    window: int = 0
    version: int = 0
    """The number of changes of the weights so far."""
    dtype: str = ""
    supervised: int = 0
    at: Tensor | None = None
    """Places, of those flattened, that are to be solved."""
    h: Tensor | None = None
    g: Tensor | None = None
    norm_sum: Tensor | None = None
    why: str | None = "no backward pass"
    live: Tensor | None = None
    """True where something is learnt, of all places flattened: also where they are not solved."""
    kind: str | None = None
    """Plain, padded, packed, or both; None where its ids were not seen."""
    some: Tensor | None = None
    """Some of the hidden states, to compare those of a pass without gradients with."""
    apart: Tensor | None = None
    """The distance of a pass of the same ids without gradients, relative to the states' norm."""
    alone: dict[str, Any] = field(default_factory=dict)
    """For the first record of its kind: the inputs, the hidden states and the positions."""


def thrown_away(records: list[PassRecord]) -> str:
    """Say how many passes left gradients that were thrown away, and whether these were finite."""
    bad = {r.window for r in records if r.g is not None and not bool(r.g.isfinite().all())}
    every = bad == {r.window for r in records}
    more = ", each time with some that are not finite" if every else ""
    return f"passes whose gradients were thrown away: {len(records)}{more}"


def rounding(record: PassRecord, weights: torch.dtype, solved_in: torch.dtype) -> float:
    """Return one rounding of the coarsest arithmetic that was used."""
    used = [record.dtype, str(weights)] + ([record.autocast] if record.autocast else [])
    coarsest = max(_ROUNDING.get(name, 2.0**-9) for name in used)
    single = solved_in == torch.float32 or "torch.float32" in used
    if single and record.h is not None and multiplies_in_tf32(record.h.device):
        coarsest = max(coarsest, 2.0**-11)
    return max(coarsest, 2.0**-22) if solved_in == torch.float32 else coarsest


def next_ids(ids: Tensor, at: Tensor) -> Tensor:
    """Return the id after each place of flattened ids; −1 at a row's end."""
    following = torch.full_like(ids, -1)
    following[:, :-1] = ids[:, 1:]
    return following.flatten()[at.to(ids.device)]


def quantiles(x: Tensor) -> list[float] | None:
    """Return least, median, 99th percentile and greatest of what is finite."""
    x = x[torch.isfinite(x)].double().flatten()
    if not len(x):
        return None
    x = x.sort().values
    n = len(x)
    return [float(f"{float(x[k]):.9g}") for k in (0, n // 2, min(n - 1, int(0.99 * n)), n - 1)]


def micro_facts(
    record: PassRecord,
    solved: Solution | None,
    found: FoundModel,
    u: float,
    *,
    text: bool,
    scale: float,
) -> dict[str, Any]:
    """Return the fields of `micro`; weights are divided by the loss's scale."""
    fact: dict[str, Any] = {
        "index": record.index,
        "shape": list(record.shape),
        "supervised": record.supervised,
        "solved": 0 if solved is None else len(solved.weight),
        "why": record.why,
        "dropout": record.dropout,
        "batch": record.kind,
        "reference": _reference(record),
    }
    if solved is None or record.at is None:
        return fact
    cpu = Solution(*(each.cpu() for each in vars(solved).values()))
    w = cpu.weight.double() / scale
    least = 1000 * u if u < 1e-4 else 0.1
    slack = SLACK * cpu.rounding.double()
    plain = (cpu.plain_misfit * cpu.resolved <= slack) | (cpu.plain_misfit <= slack)
    read = (cpu.misfit * cpu.resolved <= slack) | (cpu.misfit <= slack)
    odd = ~plain
    # what rounding, and what the fit leaves, may have changed in a weight, relative to it
    tolerance = 2 * slack / cpu.resolved.clamp_min(least) + _ERRORS * cpu.noise.double()
    sure = (cpu.resolved > least) & (tolerance <= _USUAL * tolerance.median())
    fact.update(
        dtype=record.dtype,
        autocast=record.autocast,
        u=u,
        names=record.names,
        loss_scale=scale,
        sum=float(w.sum()),
        weight=quantiles(w),
        misfit=quantiles(cpu.misfit),
        plain_misfit=quantiles(cpu.plain_misfit),
        resolved=quantiles(cpu.resolved),
        measured=int(sure.sum()),
        measured_weight=quantiles(w[sure]),
        tolerance=quantiles(tolerance[sure]),
        uneven=_uneven(w[sure], tolerance[sure]),
        by_target=_by_target(cpu.target[sure], w[sure], tolerance[sure]),
        read=int(read.sum()),
        odd=int(odd.sum()),
    )
    for name in ("smooth", "z", "entropy"):
        fact[name] = quantiles((getattr(cpu, name) / cpu.weight)[odd]) if bool(odd.any()) else None
    fact.update(_of_ids(record, cpu, w, sure & read, found, text=text))
    return fact


def _uneven(weight: Tensor, tolerance: Tensor) -> int:
    """Count the tokens whose weight is another one than the median, beyond their tolerance."""
    if not len(weight):
        return 0
    middle = weight.sort().values[len(weight) // 2]
    apart = (weight - middle).abs() > tolerance.clamp_min(_SAME) * middle.abs()
    return int(apart.sum())


def _by_target(target: Tensor, weight: Tensor, tolerance: Tensor) -> dict[str, list[float]]:
    """Return count, median weight, tolerance and greatest distance from it, of frequent ids.

    The last two are relative to the median. A loss that weighs tokens by their id weighs one id
    alike in all micro-batches of a step.
    """
    ids, counts = target.unique(return_counts=True)
    often = sorted(zip(counts.tolist(), ids.tolist()), key=lambda one: (-one[0], one[1]))
    found = {}
    for count, token in often[:_TARGETS]:
        mine = target == token
        middle = weight[mine].sort().values[count // 2]
        apart = (weight[mine] - middle).abs().max() / middle.abs().clamp_min(1e-300)
        each = tolerance[mine].max()
        found[str(token)] = [count, *(float(f"{float(x):.9g}") for x in (middle, each, apart))]
    return found


def _reference(record: PassRecord) -> dict[str, Any] | None:
    """Return how far the same rows without gradients are, as a reference computes them."""
    if record.apart is None or record.some is None:
        return None
    return {"apart": float(record.apart), "elements": record.some.numel()}


def _of_ids(
    record: PassRecord, solved: Solution, w: Tensor, sure: Tensor, found: FoundModel, *, text: bool
) -> dict[str, Any]:
    assert record.at is not None
    at = record.at.cpu()
    length = record.shape[-1]
    rows = at // length
    seen = record.seen
    if seen is None or tuple(seen.ids.shape) != tuple(record.shape):
        return {
            **dict.fromkeys(
                (
                    *("not_next", "is_plus", "left_out", "borders", "ends", "row_ends"),
                    *("specials", "rows"),
                )
            ),
            "per_row": _per_row(rows, w, record, sure, solved.logp),
            "pairs": None,
            "per_token": [],
        }
    ids = seen.ids.cpu()
    inputs = {n: v.cpu() if isinstance(v, Tensor) else v for n, v in seen.inputs.items()}
    keep = token_mask(inputs, ids)
    following, target = next_ids(ids, at), solved.target
    wrong = sure & ~_row_ends(inputs, ids, found)[at] & (target != following)
    of_next_row = sure & (target == _next_rows(inputs, ids, found)[at])
    wrong |= of_next_row
    plus = {}
    for distance in (0, 2, 3):
        there = (at + distance).clamp_max(ids.numel() - 1)
        plus[str(distance)] = int((wrong & (ids.flatten()[there] == target)).sum())
    ends = ids.new_tensor(found.ends)
    special = {}
    for token in sorted({token for each in found.specials.values() for token in each}):
        learnt, given = int((sure & (target == token)).sum()), int((ids[keep] == token).sum())
        if learnt or given:
            special[str(token)] = {"in_inputs": given, "learnt": learnt}
    mask = (record.alone.get("inputs") or {}).get("attention_mask")
    mask = mask if found.layout is None else None  # Megatron-core's is the other way round
    return {
        "borders": border_facts(inputs, mask, ids, at[sure], target[sure], found.ends),
        "not_next": int(wrong.sum()),
        "is_plus": plus,
        "of_next_row": int(of_next_row.sum()),
        "left_out": _left_out(record, inputs, ids, sure, target, found),
        "ends": {
            "in_inputs": int(torch.isin(ids[keep], ends).sum()),
            "learnt": int(torch.isin(target, ends).sum()),
            "behind": _ends_behind(ids, at, ends),
        },
        "row_ends": _row_ends_learnt(record, inputs, ids, sure, target, found),
        "text_left_out": _text_left_out(record, inputs, ids, found),
        "specials": special,
        "rows": [digest_of_bytes(tensor_bytes(row[m])) for row, m in zip(ids, keep)],
        "per_row": _per_row(rows, w, record, sure, solved.logp, (ids, keep)),
        "pairs": pair_facts(ids, keep),
        "per_token": _per_token(record, solved, w, following if text else None),
    }


def _row_ends_learnt(
    record: PassRecord,
    inputs: dict[str, Any],
    ids: Tensor,
    sure: Tensor,
    target: Tensor,
    found: FoundModel,
) -> dict[str, Any] | None:
    """Return the runs at the ends of rows that are learnt."""
    if record.live is None or record.at is None:
        return None
    at = record.at.cpu()
    known, learnt = torch.zeros_like(ids, dtype=torch.bool), torch.full_like(ids, -1)
    known.view(-1)[at], learnt.view(-1)[at] = sure, target.to(ids.dtype)
    mask = _plain_mask(record, inputs, ids, found)
    live = record.live.cpu().view(ids.shape)
    return row_ends(ids, live, known, learnt, None if mask is None else mask != 0)


def _ends_behind(ids: Tensor, at: Tensor, ends: Tensor) -> int:
    """Count the end tokens right after what is learnt that are not learnt themselves."""
    learnt = torch.zeros_like(ids, dtype=torch.bool).flatten()
    learnt[at] = True
    learnt = learnt.view(ids.shape)  # at a place: the next token is learnt
    behind = learnt[:, :-2] & ~learnt[:, 1:-1] & torch.isin(ids[:, 2:], ends)
    return int(behind.sum())


def _plain_mask(
    record: PassRecord, inputs: dict[str, Any], ids: Tensor, found: FoundModel
) -> Tensor | None:
    """Return the mask of a batch where what its zeros mean is known, or None."""
    mask = inputs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        return None
    if "decoder_input_ids" in record.names or (mask.is_floating_point() and bool((mask < 0).any())):
        return None  # it is an encoder's, or one that is added to scores
    if not any(kind.__module__.startswith("transformers.") for kind in type(found.base).__mro__):
        return None
    return mask


def _text_left_out(
    record: PassRecord, inputs: dict[str, Any], ids: Tensor, found: FoundModel
) -> list[int] | None:
    """Return how many rows have text that the mask leaves out, of how many that teach something.

    Padding is one id over and over; text that is left out before what is learnt has several.
    """
    mask = _plain_mask(record, inputs, ids, found)
    if mask is None or record.at is None:
        return None
    length, silent = ids.shape[1], {token for each in found.specials.values() for token in each}
    first: dict[int, int] = {}
    for place in record.at.tolist():
        first.setdefault(place // length, place % length)
    rows = 0
    for row, place in first.items():
        before = ids[row, : place + 1][mask[row, : place + 1] == 0].tolist()
        shown = int((mask[row, : place + 1] != 0).sum())
        text = [token for token in before if token not in silent]
        rows += len(set(text)) > 2 and len(text) > shown
    return [rows, len(first)]


def _left_out(
    record: PassRecord,
    inputs: dict[str, Any],
    ids: Tensor,
    sure: Tensor,
    target: Tensor,
    found: FoundModel,
) -> int | None:
    """Count the tokens learnt where the batch's mask has neither them nor what they follow.

    The last padding on the left is followed by a row's first token: that one is in the mask. None:
    there is no mask of this shape, or what its zeros mean is not known.
    """
    assert record.at is not None
    mask = _plain_mask(record, inputs, ids, found)
    if mask is None:
        return None
    at, keep = record.at.cpu(), mask != 0
    both = ~keep
    both[:, :-1] &= ~keep[:, 1:]
    padding = target.new_tensor(found.specials.get("pad", []))
    both &= ~repeated_places(ids)  # padding that no config names: `row_ends` has it
    return int((sure & both.flatten()[at] & ~torch.isin(target, padding)).sum())


def _row_ends(inputs: dict[str, Any], ids: Tensor, found: FoundModel) -> Tensor:
    """Return the places after which a text has no id: batches may come shifted already."""
    last = torch.ones_like(ids, dtype=torch.bool)
    for text in documents(inputs, ids):
        last[text.row, text.columns[:-1]] = False
    padding = ids.new_tensor(found.specials.get("pad", []))
    last[:, :-1] |= torch.isin(ids[:, 1:], padding) & ~torch.isin(ids[:, :-1], padding)
    return last.flatten()


def _next_rows(inputs: dict[str, Any], ids: Tensor, found: FoundModel) -> Tensor:
    """Return the id with which the next text begins, where a place's label can be that by mistake.

    That is the last place of a text before padding, and the last place of a row, where that is
    padding, or where other rows are padded on the left. No label of their own text can be that, but
    for an end token, with which texts may begin too. −1 at all other places: of a stream of text,
    which is cut into rows, each continues in the next one.
    """
    first = torch.full_like(ids, -1)
    texts, keep = documents(inputs, ids), token_mask(inputs, ids)
    for text, after in zip(texts, [*texts[1:], *texts[:1]]):
        behind = int(text.columns[-1]) + 1
        begins = int(ids[after.row, after.columns[0]])
        padded = behind < ids.shape[1] and not bool(keep[text.row, behind])
        if padded and len(texts) > 1 and begins not in found.ends:
            first[text.row, behind - 1] = begins
    on_the_left = bool((~keep[:, 0] & keep[:, -1]).any())
    for row, begins in enumerate(ids[1:, 0].tolist()):
        lone = bool(keep[row + 1, 0]) and (on_the_left or not bool(keep[row, -1]))
        if lone and begins not in found.ends:
            first[row, -1] = begins
    return first.flatten()


def _per_row(
    rows: Tensor,
    w: Tensor,
    record: PassRecord,
    sure: Tensor,
    logp: Tensor,
    texts: tuple[Tensor, Tensor] | None = None,
) -> list[dict[str, Any]]:
    found = []
    counts = record.alone.get("row_counts") or {}
    for row in range(min(64, record.shape[0])):
        here = rows == row
        mine = w[here]
        if not len(mine):
            continue
        known = w[here & sure]
        middle = quantiles(known)
        known = known if len(known) else mine
        found.append(
            {
                "row": row,
                "median": None if middle is None else middle[1],
                "sure": int((here & sure).sum()),
                "logp": float(logp[here].sum()),
                **_lower(mine, logp[here]),
                **_place_in_text(record, here, row, texts),
                "n": counts.get(row, len(mine)),
                "solved": len(mine),
                "sum": float(mine.sum()),
                "least": float(known.min()),
                "greatest": float(known.max()),
                "positive": int((mine > 0).sum()),
                "negative": int((mine < 0).sum()),
            }
        )
    return found


def _lower(w: Tensor, logp: Tensor) -> dict[str, Any]:
    """Return the tokens below the middle of a row's weights, where they have two sizes."""
    low, high = w.min(), w.max()
    if bool(low * high <= 0) or bool(high - low <= 1e-2 * torch.maximum(low.abs(), high.abs())):
        return {}
    below = w < (low + high) / 2
    return {"lower": {"n": int(below.sum()), "logp": float(logp[below].sum())}}


def _place_in_text(
    record: PassRecord, here: Tensor, row: int, texts: tuple[Tensor, Tensor] | None
) -> dict[str, Any]:
    """Return where in its text a row's first target is, and how many are behind its mask's end.

    The text before the first target is its prompt, of which there is a digest.
    """
    unknown = dict.fromkeys(("tokens", "first", "behind", "prompt"))
    if texts is None or record.at is None:
        return unknown
    ids, keep = texts
    targets = record.at.cpu()[here] % ids.shape[1] + 1
    inside = keep[row].nonzero()[:, 0]
    if not len(inside):
        return unknown
    first, last = int(inside[0]), int(inside[-1])
    places = keep[row].cumsum(0)[targets.clamp_max(ids.shape[1] - 1)] - 1
    text = (targets > first) & (targets <= last)
    begin = int(places[text].min()) if bool(text.any()) else int(targets.min()) - first
    prompt = ids[row][inside[: max(0, begin)]]
    return {
        "tokens": int(keep[row].sum()),
        "first": begin,
        "prompt": digest_of_bytes(tensor_bytes(prompt)) if len(prompt) > 1 else None,
        "behind": int((targets > last).sum()),
    }


def _per_token(
    record: PassRecord, solved: Solution, w: Tensor, following: Tensor | None
) -> list[dict[str, Any]]:
    if record.index >= MICROS or record.at is None:
        return []
    at, length = record.at.cpu(), record.shape[-1]
    found = []

    def short(values: Tensor) -> list[float]:
        return [float(f"{value:.6g}") for value in values.tolist()]

    for row in range(min(_ROWS, record.shape[0])):
        mine = (at // length == row).nonzero()[:_TOKENS, 0]
        if len(mine):
            found.append(
                {
                    "row": row,
                    "position": (at[mine] % length).tolist(),
                    "target": solved.target[mine].tolist(),
                    "next": None if following is None else following[mine].tolist(),
                    "weight": short(w[mine]),
                    "misfit": short(solved.misfit[mine]),
                    "resolved": short(solved.resolved[mine]),
                }
            )
    return found
