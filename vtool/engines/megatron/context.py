"""Context parallelism: a row's tokens over several ranks, in attention too.

A row is cut into twice as many pieces as there are ranks, and each rank has one from the front and
one from the back: 0 and 3, and 1 and 2 of two ranks. What comes first is seen by all that comes
after, so all have as much to do. Transformer Engine's attention, and what megatron-core cuts out of
rotary positions for a rank (`models/common/embeddings/rope_utils.py`), go by this order.

A row is cut after the image features have been merged, and joined again before the head, as under
sequence parallelism: the tower is run whole on each of the ranks, and so is the head, for the few
tokens that have a target. What the loss hangs on is so the same on each, and counts one part in as
many as they are (`Megatron._passes`); all gradients are then summed.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def cut_tokens(tokens: Tensor, ranks: int, rank: int) -> Tensor:
    """Return a rank's two pieces [S / ranks, …] of tokens [S, …]; 2 · ranks divides S."""
    pieces = tokens.chunk(2 * ranks)
    return torch.cat([pieces[rank], pieces[2 * ranks - 1 - rank]])


def join_tokens(tokens: Tensor, ranks: int) -> Tensor:
    """Return tokens [S, …] in their order, from the pieces of all ranks, rank after rank."""
    places = [place for rank in range(ranks) for place in (rank, 2 * ranks - 1 - rank)]
    pieces = dict(zip(places, tokens.chunk(2 * ranks), strict=True))
    return torch.cat([pieces[place] for place in range(2 * ranks)])


def scatter_tokens(tokens: Tensor, group: Any) -> Tensor:
    """Return this rank's two pieces of tokens [S, …] in a context parallel group (`cut_tokens`)."""
    ranks = dist.get_world_size(group)
    return tokens if ranks == 1 else cut_tokens(tokens, ranks, dist.get_rank(group))


def gather_tokens(tokens: Tensor, group: Any) -> Tensor:
    """Gather the tokens of all ranks on each of them, in order.

    Their gradients are summed on the way back.
    """
    from megatron.core import tensor_parallel

    ranks = dist.get_world_size(group)
    if ranks == 1:
        return tokens
    return join_tokens(
        tensor_parallel.gather_from_sequence_parallel_region(tokens, group=group), ranks
    )
