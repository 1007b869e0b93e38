"""Whole tensors of what is spread over tensor parallel ranks, their copies and pipeline stages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor

from vtool.engines.megatron.groups import GroupRanks, Groups
from vtool.engines.megatron.weights import LanguageWeights, TowerWeights

WEIGHT, GRADIENT = "weight", "gradient"


@dataclass(frozen=True, slots=True)
class Spread:
    """A parameter, or an entry of its state, by where its elements are: ranks exchange that."""

    name: str
    """The parameter's, in the module of its stage."""
    entry: str
    """`WEIGHT`, `GRADIENT`, or the name of an entry of the optimizer's state."""
    weights: LanguageWeights | TowerWeights
    shape: torch.Size
    """The shape of a tensor parallel rank's share."""
    dtype: torch.dtype
    """The dtype of the elements that a rank has; a weight is yielded in float32."""
    pieces: Mapping[int, tuple[int, int]] | None
    """The elements of the share, from the first to the last, of each rank among its copies that has
    any. None: each has all of them.
    """
    shares: int
    """The tensor parallel ranks that it is cut for; 1 where each of them has it whole."""
    stage: int
    steps: int = 0
    """The updates of the parameter so far, where they are asked for."""

    @property
    def names(self) -> tuple[str, ...]:
        """Transformers' names of the tensors that it is made of."""
        return self.weights.names(self.name)

    def join(self, shares: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return whole tensors by transformers' names, from each tensor parallel rank's share."""
        joined = self.weights.join(self.name, shares)
        if self.entry != WEIGHT:
            return joined
        return {name: tensor.float() for name, tensor in joined.items()}

    def whole(self) -> dict[str, Tensor]:
        """Return the tensors without values."""
        return self.join([torch.empty(self.shape, dtype=self.dtype, device="meta")] * self.shares)

    def bytes(self) -> int:
        """Return the bytes of the whole tensors together."""
        return sum(tensor.nbytes for tensor in self.whole().values())


Elements = Callable[[str, str], Tensor | None]
"""Given a parameter of this rank's stage and an entry, the elements that this rank has, if any."""


def over_stages(own: list[Spread], groups: Groups) -> list[Spread]:
    """Return the items of all stages, one stage after the other; each gives its own.

    What two stages have, a tied embedding, is the first one's.
    """
    found: dict[str, Spread] = {}
    for theirs in groups.stages.all_gather_objects(own):
        for spread in theirs:
            found.setdefault(spread.names[0], spread)
    return list(found.values())


def gather(
    spread: Spread, elements: Elements, groups: Groups, to: int | None
) -> dict[str, Tensor] | None:
    """Return whole tensors by transformers' names on rank `to`, or on all; elsewhere None.

    Every rank of the run calls it.
    """
    return _on_all(spread, elements, groups) if to is None else _on(spread, elements, groups, to)


def _on(spread: Spread, elements: Elements, groups: Groups, to: int) -> dict[str, Tensor] | None:
    """Send the elements from wherever they are to one rank: a byte goes once, and nowhere else."""
    here, there, size = groups.place, groups.places[to], spread.shape.numel()
    # where each copy has all of it, the owner takes that of the ranks that have its own rows
    pieces = {there.copies: (0, size)} if spread.pieces is None else spread.pieces
    shares = [
        torch.empty(size if here == there else 0, dtype=spread.dtype, device=groups.data.device)
        for _ in range(spread.shares)
    ]
    moves = []
    for (copies, (start, end)), tensor in product(pieces.items(), range(spread.shares)):
        source = GroupRanks(tensor, copies, spread.stage)
        if here == source:
            own = elements(spread.name, spread.entry)
            assert own is not None, "a rank has its piece"
            own = own.detach().reshape(-1).to(groups.data.device)
            if here == there:
                shares[tensor][start:end] = own
            else:
                moves.append(dist.P2POp(dist.isend, own, to))
        elif here == there:
            rank = groups.places.index(source)
            moves.append(dist.P2POp(dist.irecv, shares[tensor][start:end], rank))
    for work in dist.batch_isend_irecv(moves) if moves else ():
        work.wait()
    return spread.join([share.view(spread.shape) for share in shares]) if here == there else None


def _on_all(spread: Spread, elements: Elements, groups: Groups) -> dict[str, Tensor]:
    """Join the tensors on their own stage, and send them to the others."""
    device, stages = groups.data.device, groups.stages
    if spread.stage == stages.rank:
        share = _over_copies(spread, elements(spread.name, spread.entry), groups)
        found = spread.join(groups.gather_tensor_shares(share))
    else:
        found = {
            name: torch.empty(one.shape, dtype=one.dtype, device=device)
            for name, one in spread.whole().items()
        }
    if stages.world > 1:
        found = {name: tensor.contiguous() for name, tensor in found.items()}
        for tensor in found.values():
            dist.broadcast(tensor, group=stages.group, group_src=spread.stage)
    return found


def _over_copies(spread: Spread, own: Tensor | None, groups: Groups) -> Tensor:
    """Return a tensor parallel rank's share, joined from the ranks with the same weights."""
    device = groups.data.device
    if spread.pieces is None:
        assert own is not None, "each copy has all of it"
        return own.detach().view(spread.shape).to(device)
    whole = torch.zeros(spread.shape.numel(), dtype=torch.float32, device=device)
    if own is not None:
        start, end = spread.pieces[groups.copies.rank]
        whole[start:end] = own.detach().view(-1)
    # As integers: a sum with zeros then keeps every bit, −0.0 too.
    dist.all_reduce(whole.view(torch.int32), group=groups.copies.group)
    return whole.view(spread.shape)
