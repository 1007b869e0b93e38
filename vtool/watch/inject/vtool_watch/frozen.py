"""Parameters that are not trained at a look, and whether the step moves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .adapters import AdaptedValues, adapted_weights, adapter_facts
from .digests import digests, sampled_checksum
from .kept_gradients import gradient_of
from .megatron import is_owned
from .model import FoundModel, local_shard

_NAMES, _SAMPLE = 20, 1 << 16


class Frozen:
    """Checksums of what requires no gradient, from look to look; and what no optimizer has."""

    def __init__(self, found: FoundModel, skip: Callable[[str, str], None]) -> None:
        self.found, self._skip = found, skip
        self.sums: dict[str, str] = {}
        self._trained: set[str] = set()
        """Parameters that required a gradient at an earlier look."""
        self._values = AdaptedValues()
        self._facts: dict[str, Any] = {}
        self._pushed: set[str] = set()
        """Frozen parameters that the optimizer has, with a gradient."""

    def _named(self) -> dict[str, Any]:
        return {n: p for n, p in self.found.model.named_parameters() if not p.requires_grad}

    def look(self, optimizer: Any, owned: set[int], *, shared_out: bool, anew: bool) -> None:
        """Take checksums before a step.

        Those of an earlier look are kept: what changed since is seen after the step too. They are
        taken anew of what was not frozen then, of what another optimizer trains in turn, and of
        adapted weights, which merging and unmerging adapters rounds.

        Args:
            optimizer: the one that is about to step.
            owned: parameters (by `id`) that any optimizer has.
            shared_out: the optimizer has shares of parameters: which ones is not known.
            anew: the earlier look is too long ago.
        """
        frozen = self._named()
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        adapted = {one.name: one for one in adapted_weights(self.found.model)}
        again = [
            n
            for n, p in frozen.items()
            if anew or n not in self.sums or n in adapted or (id(p) in owned and id(p) not in mine)
        ]
        each = [sampled_checksum(local_shard(frozen[n]), _SAMPLE) for n in again]
        fresh = dict(zip(again, digests(each)))
        changed = [n for n in fresh if n in adapted and self.sums.get(n, fresh[n]) != fresh[n]]
        moved = self._values.moved([] if anew else [adapted[n] for n in changed])
        if moved["unknown"]:
            why = "adapted weights that are quantized, or in pieces, changed between two steps"
            self._skip("frozen", why)
        self._values.keep(one for n, one in adapted.items() if n in frozen)
        self.sums = {n: fresh.get(n) or self.sums[n] for n in frozen}
        self._pushed = {
            n for n, p in frozen.items() if is_owned(p, mine) and gradient_of(p) is not None
        }
        lost = [
            n
            for n, p in self.found.model.named_parameters()
            if p.requires_grad and not shared_out and not is_owned(p, owned)
        ]
        about = adapter_facts(self.found.model, [*adapted.values()], owned, shared_out)
        self._facts = {
            "adapters": None if about is None else {**about, **moved},
            "in_no_group": lost[:_NAMES],
            "n_in_no_group": len(lost),
        }

    def facts(self) -> dict[str, Any]:
        """Return the fields of `stepped` on what was frozen before the step, and keep it as it is.

        What requires a gradient only since is left out.
        """
        now = {n: p for n, p in self._named().items() if n in self.sums}
        each = digests([sampled_checksum(local_shard(p), _SAMPLE) for p in now.values()])
        before, self.sums = self.sums, dict(zip(now, each))
        moved = [n for n, value in self.sums.items() if before[n] != value]
        late = [n for n in moved if n in self._trained]
        self._trained |= {n for n, p in self.found.model.named_parameters() if p.requires_grad}
        return {
            "frozen_that_moved": moved[:_NAMES],
            "n_frozen_that_moved": len(moved),
            "n_frozen_late": len(late),
            "n_frozen_pushed": sum(n in self._pushed for n in moved),
            "n_frozen": len(before),
            **self._facts,
        }
