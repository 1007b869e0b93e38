"""The embedding's rows: which of a step's tokens have one of zeros, and whose gradient is large."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor

from .kept_gradients import gradient_of
from .learnt import PassRecord
from .model import FoundModel
from .rows import token_mask

_FAINT, _AT_MEAN = 1e-3, 1e-2
"""Parts of the usual size of a row: as good as zero; as near to the mean as a resize puts rows."""
_SAMPLE, _MOST_IDS, _LARGEST = 1024, 4096, 4
_MARK = re.compile(r"start|end|begin")
"""Names of tokens beside places of images: they are read as text."""
_MOST = 1 << 31
"""Elements of which the mean is taken."""


class EmbeddingRows:
    """Looks at the embedding's weight and gradient, at the steps that are looked at."""

    def __init__(self, found: FoundModel) -> None:
        self.found = found
        self._mean: Tensor | None = None

    def tokens(self, records: list[PassRecord]) -> dict[str, Any] | None:
        """Return `tokens` of `arrived`; None where the embedding or the ids cannot be read."""
        weight, trained = self._weight()
        ids = None if weight is None else self._ids(records)
        if ids is None:
            return None
        values, counts = ids.unique(return_counts=True)
        inside = values < len(weight)
        values, counts = values[inside][:_MOST_IDS], counts[inside][:_MOST_IDS]
        usual = _usual(weight)
        rows = weight[values.to(weight.device)].float()
        zero = _sizes(rows) <= _FAINT * usual
        fact: dict[str, Any] = {
            "ids": len(values),
            "trained": trained,
            "zero": _named(values, counts, zero),
            "at_mean": None,
        }
        if not trained and weight.numel() <= _MOST:  # one that is trained moves on
            if self._mean is None:
                self._mean = weight.mean(0, dtype=torch.float32)
            near = _sizes(rows - self._mean) <= _AT_MEAN * usual
            fact["at_mean"] = _named(values, counts, near & ~zero)
        return fact

    def largest(self, names: list[str], parts: list[Tensor], squares: list[float]) -> Any:
        """Return `largest` of `arrived`: parts of the square of this process's whole gradient.

        Args:
            names: of the tensors with a gradient.
            parts: their gradients.
            squares: their squares.
        """
        total = sum(squares)
        if not names or not 0 < total < float("inf"):
            return None
        at = max(range(len(names)), key=squares.__getitem__)
        weight, _ = self._weight()
        gradient = None if weight is None else gradient_of(weight)
        rows = None
        if isinstance(gradient, Tensor) and not gradient.is_sparse and gradient.dim() == 2:
            wide = None if gradient.dtype == torch.float64 else torch.float32
            sizes = torch.linalg.vector_norm(gradient.detach(), dim=1, dtype=wide)
            top = sizes.topk(min(_LARGEST, len(sizes)))
            own = (_sizes(weight[top.indices].float()) / _usual(weight)).tolist()
            rows = [
                [row, size**2 / total, part if math.isfinite(part) else None]
                for row, size, part in zip(top.indices.tolist(), top.values.tolist(), own)
            ]
        return {
            "tensor": names[at],
            "share": squares[at] / total,
            "elements": parts[at].numel(),
            "of": sum(part.numel() for part in parts),
            "tensors": len(names),
            "rows": rows,
        }

    def _weight(self) -> tuple[Any, bool]:
        """Return the matrix that ids are looked up in, and whether any of it is trained."""
        if self.found.layout is not None:
            return None, False
        module = self.found.model.get_input_embeddings()
        if not isinstance(module, torch.nn.Module):
            return None, False
        trained = any(p.requires_grad for p in module.parameters())
        saved: Any = getattr(module, "modules_to_save", None)
        if saved is not None and len(saved):
            active = [n for n in getattr(module, "active_adapters", ()) if n in saved]
            module = saved[(active or list(saved))[0]]
        weight: Any = getattr(module, "weight", None)
        plain = (
            isinstance(weight, Tensor)
            and weight.dim() == 2
            and weight.is_floating_point()
            and not hasattr(weight, "full_tensor")
            and not hasattr(weight, "ds_tensor")
            and len(weight) > 1
        )
        return (weight, trained) if plain else (None, trained)

    def _ids(self, records: list[PassRecord]) -> Tensor | None:
        """Return the ids of a step's texts, without padding and places of images."""
        seen = [r.seen for r in records if r.seen is not None]
        if not seen or len(seen) < len(records):
            return None
        ids = torch.cat([one.ids.cpu()[token_mask(one.inputs, one.ids)] for one in seen])
        beside = {
            i
            for name, found in self.found.specials.items()
            if not _MARK.search(name)
            for i in found
        } - {*self.found.ends}
        # a row of padding is zero by its making, and has no gradient
        padding = getattr(self.found.model.get_input_embeddings(), "padding_idx", None)
        beside |= set() if padding is None else {int(padding)}
        left = torch.tensor(sorted(beside), dtype=ids.dtype, device=ids.device)
        return ids[(ids >= 0) & ~torch.isin(ids, left)]


def _sizes(rows: Tensor) -> Tensor:
    return rows.square().mean(1).sqrt()


def _usual(weight: Tensor) -> Tensor:
    """Return the median size of a matrix's rows, of some of them."""
    every = torch.arange(0, len(weight), max(1, len(weight) // _SAMPLE), device=weight.device)
    return _sizes(weight[every].float()).median()


def _named(values: Tensor, counts: Tensor, which: Tensor) -> list[list[int]]:
    """Return [id, places] of the ids that are meant, the most frequent first."""
    which = which.cpu()
    pairs = zip(values[which].tolist(), counts[which].tolist())
    return [list(pair) for pair in sorted(pairs, key=lambda pair: -pair[1])][:20]
