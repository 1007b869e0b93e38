"""The tensors that each rank is given where they have owners, and the memory taken for them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vtool.engines.contract import Owner, to_all_ranks
from vtool.engines.ranks import Ranks

Taken = Callable[[Owner], Iterator[tuple[str, Tensor]]]


@dataclass
class Owned:
    """One rank's part of it; the questions are those that the owner was asked."""

    whole: dict[str, Tensor] = field(default_factory=dict)
    """The tensors that it is given where every rank is given everything."""
    asked: list[tuple[int, int]] = field(default_factory=list)
    """The bytes, and the rank that was answered."""
    given: list[tuple[int, str, Tensor]] = field(default_factory=list)
    """Tensors, each with the question before it."""
    made: list[int] = field(default_factory=list)
    """The bytes of the largest tensor that was made on the CPU, after each question."""


class _Made(TorchDispatchMode):
    """Keeps the bytes of the largest tensor that is made, not of one that views another."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_place(one) for one in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for one in _tensors(result):
            if _place(one) not in given and not _is_message(one):
                self.largest = max(self.largest, one.nbytes)
        return result


def take(taken: Taken, ranks: Ranks) -> Owned:
    """Collect the tensors of a rank where all own everything, and where they own in turn."""
    found = Owned({name: tensor.clone() for name, tensor in taken(to_all_ranks)})

    def in_turn(size: int) -> int:
        if found.asked:
            found.made.append(made.largest)
        made.largest = 0
        found.asked.append((size, len(found.asked) % ranks.world))
        return found.asked[-1][1]

    with _Made() as made:
        own = taken(in_turn)
        while (pair := next(own, None)) is not None:
            found.given.append((len(found.asked) - 1, pair[0], pair[1].clone()))
    found.made.append(made.largest)
    return found


def check(found: list[Owned], largest_share: Callable[[list[Tensor]], int]) -> None:
    """Compare the ranks' parts with the whole, to the bit.

    Args:
        largest_share: of the tensors of a question, the bytes that a rank which does not own them
            may make at once.
    """
    whole = found[0].whole
    assert all(one.asked == found[0].asked for one in found)
    names = Counter(name for one in found for _, name, _ in one.given)
    assert names == Counter(whole.keys())
    of_question: dict[int, list[Tensor]] = {}
    for rank, one in enumerate(found):
        for question, name, tensor in one.given:
            assert one.asked[question][1] == rank, name
            assert tensor.dtype == whole[name].dtype, name
            assert tensor.shape == whole[name].shape, name
            assert torch.equal(_bits(tensor), _bits(whole[name])), name
            of_question.setdefault(question, []).append(tensor)
    for question, (size, owner) in enumerate(found[0].asked):
        tensors = of_question[question]
        assert size == sum(tensor.nbytes for tensor in tensors)
        for rank, one in enumerate(found):
            if rank != owner:
                assert one.made[question] <= largest_share(tensors), (question, rank)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _tensors(tree: Any) -> Iterable[Tensor]:
    for one in tree_leaves(tree):
        own = one.to_local() if isinstance(one, DTensor) else one
        if isinstance(own, Tensor) and own.device.type == "cpu" and own.numel():
            yield own


def _is_message(tensor: Tensor) -> bool:
    """Return true for objects or numbers on their way between ranks: no weight is like them."""
    return tensor.dim() <= 1 and tensor.dtype not in (torch.float32, torch.bfloat16)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
