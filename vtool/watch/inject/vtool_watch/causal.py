"""A captured batch computed again with other tokens behind a learnt place of each row.

Masks, positions and images are its own: what stands before must not change. A mask that is causal
only where there is no padding, or only between packed texts, shows itself in no other batch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .alone import (
    NotComputedAlone,
    coarsest,
    hidden_of,
    in_precision,
    longest_product,
    shaken,
    state_kept,
)
from .kinds import UNKNOWN_KIND, batch_texts
from .learnt import PassRecord
from .model import FoundModel, has_dropout, holds_shards
from .places import to_float64
from .rows import Document

_DRAWS, _SHIFTS = 2, 8
_CERTAIN, _CERTAIN_IN_16_BITS = 3.0, 4.0
"""Times of what rounding allows. With equal shapes, dense layers leave nothing to round."""
_SAME_BATCH = 8.0
_ROUTED = re.compile(r"(experts?|moe|router|gate|float8|fp8|8bit)", re.IGNORECASE)
"""Modules in which a token changes how others are rounded: they share scales or a product."""


@dataclass
class Replaced:
    """The places of a batch that get another token, and those that must not change then."""

    places: Tensor
    """Flattened, of those that get another token."""
    sources: Tensor
    """The places that those tokens are from."""
    before: Tensor
    """The learnt places, by their number, that are before what is replaced in their row."""
    rows: int


def compare_replaced(found: FoundModel, record: PassRecord) -> dict[str, Any]:
    """Replace text behind learnt places of a batch; return the fields of `causal`.

    Raises:
        NotComputedAlone: the batch, or the model as it is kept, does not allow it.
    """
    kept = record.alone
    base, ids = found.base, kept["inputs"].get("input_ids")
    _refuse(found, record, ids)
    fact: dict[str, Any] = {"batch": record.kind, "micro": record.index}
    if base.training and has_dropout(base):
        return {**fact, "dropout": True}
    assert record.at is not None
    replaced = choose(found, record, ids)
    given = _with_others(kept["given"], ids, replaced)
    device = next(base.parameters()).device
    at = record.at[replaced.before]
    with state_kept(found, device), in_precision(device, record.autocast):
        unit = coarsest(base, record.autocast, device)
        other = _at(base, given, at)
        seen = kept.get("h")
        own = seen[replaced.before].to(other.device) if isinstance(seen, Tensor) else None
        repeats = True
        if own is None or _greatest(other, own) > unit:
            again = _at(base, kept["given"], at)
            limit = max(1e-4, _SAME_BATCH * unit)
            repeats = own is not None and _norm_apart(again, own) <= limit
            own = again
        routed = any(_ROUTED.search(type(m).__name__) for m in base.modules())
        apart = (_norm_apart if routed else _greatest)(other, own)
        tolerance, certain = unit, _CERTAIN_IN_16_BITS * unit
        if apart > unit and (routed or unit < 1e-5):
            tolerance = max(unit, _rounding(base, kept["given"], at, own, unit, routed, ids))
            certain = _CERTAIN * tolerance
    return {
        **fact,
        "dropout": False,
        "rows": replaced.rows,
        "tokens": len(at),
        "replaced": len(replaced.places),
        "apart": apart,
        "tolerance": tolerance,
        "certain": certain,
        "repeats": repeats,
    }


def _refuse(found: FoundModel, record: PassRecord, ids: Any) -> None:
    if found.layout is not None:
        raise NotComputedAlone("a pass through Megatron-core is of all ranks")
    if holds_shards(found.base):
        raise NotComputedAlone("the weights are sharded: a forward pass would be a collective")
    if not isinstance(ids, Tensor) or tuple(ids.shape) != tuple(record.shape):
        raise NotComputedAlone("the hidden states are not those of the ids' places")
    if record.alone.get("cached"):
        raise NotComputedAlone("the model is given keys and values from before the text")
    names = record.alone["given"]
    encodes = getattr(getattr(found.model, "config", None), "is_encoder_decoder", False)
    fed = "decoder_input_ids" in record.names or names.get("encoder_hidden_states") is not None
    if encodes and not fed:
        raise NotComputedAlone("the model reads the text with an encoder")
    if record.at is None or not len(record.at):
        raise NotComputedAlone("nothing is learnt of it")


def choose(found: FoundModel, record: PassRecord, ids: Tensor) -> Replaced:
    """Choose for each row a learnt place, and other tokens for the text behind it.

    Raises:
        NotComputedAlone: no row of the batch has text behind a learnt place.
    """
    assert record.at is not None
    rows, length = record.shape
    ids = ids.detach().cpu()
    inputs = {n: v.cpu() if isinstance(v, Tensor) else v for n, v in record.alone["parted"].items()}
    texts = batch_texts(inputs, ids) if record.kind != UNKNOWN_KIND else []
    texts = texts or [Document(row, 0, length) for row in range(rows)]
    text = torch.zeros(rows, length, dtype=torch.bool, device="cpu")
    for one in texts:
        text[one.row, one.columns] = True
    held = {token for kind in found.specials.values() for token in kind} | {*found.ends}
    open_to = text & (ids >= 0) & ~torch.isin(ids, ids.new_tensor(sorted(held)))
    learnt = torch.zeros(rows, length, dtype=torch.bool, device="cpu")
    learnt.view(-1)[record.at.cpu()] = True
    learnt &= text
    last = torch.full((rows,), -1, device="cpu")
    for row in range(rows):
        mine = [one for one in texts if one.row == row]
        cuts = [cut for one in mine if (cut := _cut(one, learnt[row], open_to[row])) is not None]
        if cuts:
            last[row] = max(cuts)[1]
    columns = torch.arange(length, device="cpu")
    behind = open_to & (columns > last[:, None]) & (last[:, None] >= 0)
    places, sources = _others(ids.flatten(), behind.flatten(), open_to.flatten())
    changed = torch.zeros(rows * length, dtype=torch.bool, device="cpu")
    changed[places] = True
    tested = changed.view(rows, length).any(1) & (last >= 0)
    before = (learnt & tested[:, None] & (columns <= last[:, None])).flatten()[record.at.cpu()]
    of_kind = _rows_of_kind(record.kind, texts, text)
    if not bool((tested & of_kind).any()) or not bool(before.any()):
        raise NotComputedAlone("no row of it has text behind a learnt place that can be replaced")
    return Replaced(places, sources, before.nonzero()[:, 0].to(record.at.device), int(tested.sum()))


def _cut(text: Document, learnt: Tensor, open_to: Tensor) -> tuple[int, int] | None:
    """Return how many learnt places a text has, and the one behind which tokens are replaced.

    The token that it is to predict is replaced too, where one has such a token.
    """
    columns = text.columns
    own = columns[learnt[columns]]
    free = columns[open_to[columns]]
    if not len(own) or not len(free):
        return None
    next_free = own[(own + 1 < len(open_to)) & open_to[(own + 1).clamp_max(len(open_to) - 1)]]
    for places in (next_free[next_free < int(columns[-1])], own[own < int(free[-1])]):
        if len(places):
            return len(own), int(places[len(places) // 2])
    return None


def _others(ids: Tensor, behind: Tensor, open_to: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places that get the token of another place, and that place for each."""
    pool, places = open_to.nonzero()[:, 0], behind.nonzero()[:, 0]
    if not len(places):
        return places, places
    rank = torch.searchsorted(pool, places)
    source = places.clone()
    for shift in range(_SHIFTS):
        same = ids[source] == ids[places]
        far = (rank + len(pool) // 2 + shift * (len(pool) // 7 + 1)) % len(pool)
        source = torch.where(same, pool[far], source)
    changed = ids[source] != ids[places]
    return places[changed], source[changed]


def _rows_of_kind(kind: str | None, texts: list[Document], text: Tensor) -> Tensor:
    """Return the rows that make a batch what it is: of a padded one, those with padding."""
    of_kind = torch.ones(len(text), dtype=torch.bool, device="cpu")
    if kind is not None and "packed" in kind:
        rows = torch.tensor([one.row for one in texts], device="cpu")
        of_kind &= torch.bincount(rows, minlength=len(text)) > 1
    elif kind == "padded" and not bool(text.all()):
        of_kind &= ~text.all(1)
    return of_kind


def _with_others(given: dict[str, Any], ids: Tensor, replaced: Replaced) -> dict[str, Any]:
    """Return the arguments of the backbone, with other ids or embeddings at some places."""
    new, count = dict(given), ids.numel()
    for name in ("input_ids", "decoder_input_ids", "inputs_embeds"):
        value = given.get(name)
        if not isinstance(value, Tensor) or value.shape[:2] != ids.shape:
            continue
        flat = value.detach().clone().reshape(count, *value.shape[2:])
        flat[replaced.places.to(flat.device)] = flat[replaced.sources.to(flat.device)]
        if name == "input_ids" and isinstance(given.get("decoder_input_ids"), Tensor):
            continue  # an encoder's
        new[name] = flat.view(value.shape)
    return new


def _at(base: Any, given: dict[str, Any], at: Tensor) -> Tensor:
    """Return the hidden states at some places of a batch, computed once more."""
    try:
        hidden = hidden_of(base(**given))
    except Exception as error:
        raise NotComputedAlone(
            f"the batch could not be computed once more: {error!r}"[:200]
        ) from error
    return hidden.flatten(0, -2)[at.to(hidden.device)].clone()


def _rounding(
    base: Any,
    given: dict[str, Any],
    at: Tensor,
    own: Tensor,
    unit: float,
    routed: bool,
    ids: Tensor,
) -> float:
    """Return how far rounding may move hidden states, as `compare_alone` measures it."""
    moved = 0.0
    for draw in range(_DRAWS):
        with shaken(base, unit, draw):
            other = _at(base, given, at)
        moved = max(moved, (_norm_apart if routed else _greatest)(other, own))
    wide = 2.0 if unit > 1e-5 else math.sqrt(max(longest_product(base), ids.shape[1]))
    return max(moved, unit / 2) * wide


def _greatest(one: Tensor, other: Tensor) -> float:
    """Return the greatest relative distance of two hidden states at one place."""
    size = to_float64(other).norm(dim=-1).clamp_min(1e-30)
    return float(((to_float64(one) - to_float64(other)).norm(dim=-1) / size).max())


def _norm_apart(one: Tensor, other: Tensor) -> float:
    size = to_float64(other).norm().clamp_min(1e-30)
    return float((to_float64(one) - to_float64(other)).norm() / size)
