"""FLOPs of attention."""

from collections.abc import Sequence

from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count


def attention_flops(dims: Sequence[Sequence[int]], *, backward: bool) -> int:
    """Return the FLOPs of attention by torch.utils.flop_counter's formulas.

    Heads that share keys count as each with its own, which torch 2.11's refuse to be asked.

    Args:
        dims: [batch, heads, length, size] of query, key and value; in the backward pass, behind the
            gradient's.
    """
    query, *rest = dims[backward : backward + 3]
    key, value = ((each[0], query[1], *each[2:]) for each in rest)
    if backward:
        return int(sdpa_backward_flop_count(dims[0], query, key, value))  # type: ignore[no-untyped-call]
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]
