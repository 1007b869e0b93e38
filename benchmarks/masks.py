"""Benchmark: attention masks against plain loops that make the same, and their memory.

Each form of `vtool.models.masks`, from lengths to what its consumer is handed. Of the loops, one
goes from token to token and writes what each of them may see, the other from row to row, or from
document to document, and writes a triangle; both give the same mask, which is checked. CPU time, in
turn, ROUNDS times; medians of the ratios within a round.

Memory: of one row, or of 16 documents in one, of TOKENS tokens, in a process of its own: the
largest tensor of each kind that torch makes on the way, and what the process takes at its peak
above what it had before. A tensor of floats, of as many tokens or more, fails it.

    python -m benchmarks.masks [--tokens N]
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vtool.models.masks import (
    allowed_in_documents,
    allowed_in_rows,
    keep_from_lengths,
    megatron_mask,
    to_hf_2d,
    to_npu_compressed,
    to_npu_dense,
    to_sdpa,
    to_tnd,
)

ROUNDS = 9
TOKENS = 32768
DOCUMENTS = 16


@dataclass(frozen=True, slots=True)
class Form:
    """A mask for one consumer, made in three ways of the lengths of rows or documents."""

    made: Callable[[Sequence[int]], Any]
    by_token: Callable[[Sequence[int]], Any]
    by_row: Callable[[Sequence[int]], Any] | None
    packed: bool
    """True where the lengths are of documents in one row."""


def rows_by_token(lengths: Sequence[int], seen: bool = True) -> Tensor:
    longest = max(lengths)
    mask = torch.full((len(lengths), 1, longest, longest), not seen)
    for row, length in enumerate(lengths):
        for place in range(longest):
            mask[row, 0, place, : min(place + 1, length)] = seen
            mask[row, 0, place, place] = seen
    return mask


def rows_by_row(lengths: Sequence[int], seen: bool = True) -> Tensor:
    longest = max(lengths)
    mask = torch.full((len(lengths), 1, longest, longest), not seen)
    causal = torch.ones(longest, longest, dtype=torch.bool).tril_()
    for row, length in enumerate(lengths):
        mask[row, 0, :, :length] = causal[:, :length] == seen
        mask[row, 0].fill_diagonal_(seen)
    return mask


def documents_by_token(lengths: Sequence[int], seen: bool = True) -> Tensor:
    mask = torch.full((1, 1, sum(lengths), sum(lengths)), not seen)
    for start, length in places(lengths):
        for place in range(length):
            mask[0, 0, start + place, start : start + place + 1] = seen
    return mask


def documents_by_document(lengths: Sequence[int], seen: bool = True) -> Tensor:
    mask = torch.full((1, 1, sum(lengths), sum(lengths)), not seen)
    for start, length in places(lengths):
        mask[0, 0, start : start + length, start : start + length] = (
            torch.ones(length, length, dtype=torch.bool).tril_() == seen
        )
    return mask


def places(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return where each document begins, and how long it is."""
    start = 0
    for length in lengths:
        yield start, length
        start += length


def kept_by_token(lengths: Sequence[int]) -> Tensor:
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        for place in range(length):
            mask[row, place] = 1
    return mask


def kept_by_row(lengths: Sequence[int]) -> Tensor:
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    return mask


def compressed_by_token(lengths: Sequence[int]) -> Tensor:
    mask = torch.zeros(2048, 2048, dtype=torch.bool)
    for place in range(2048):
        mask[place, place + 1 :] = True
    return mask


def ends_by_document(lengths: Sequence[int]) -> list[int]:
    return [start + length for start, length in places(lengths)]


def rows(lengths: Sequence[int]) -> Tensor:
    return allowed_in_rows(keep_from_lengths(lengths))


FORMS = {
    "to_sdpa, rows": Form(lambda of: to_sdpa(rows(of)), rows_by_token, rows_by_row, packed=False),
    "to_sdpa, documents": Form(
        lambda of: to_sdpa(allowed_in_documents(of)),
        documents_by_token,
        documents_by_document,
        packed=True,
    ),
    "to_hf_2d": Form(
        lambda of: to_hf_2d(keep_from_lengths(of)), kept_by_token, kept_by_row, packed=False
    ),
    "to_megatron, rows": Form(
        lambda of: megatron_mask(rows(of)),
        lambda of: rows_by_token(of, False),
        lambda of: rows_by_row(of, False),
        False,
    ),
    "to_megatron, documents": Form(
        lambda of: megatron_mask(allowed_in_documents(of)),
        lambda of: documents_by_token(of, False),
        lambda of: documents_by_document(of, False),
        packed=True,
    ),
    "to_npu_dense, rows": Form(
        lambda of: to_npu_dense(rows(of)),
        lambda of: rows_by_token(of, False),
        lambda of: rows_by_row(of, False),
        False,
    ),
    "to_npu_compressed": Form(
        lambda of: to_npu_compressed(), compressed_by_token, None, packed=True
    ),
    "to_tnd": Form(to_tnd, ends_by_document, None, packed=True),
}


def lengths_of(packed: bool) -> list[int]:
    """Return log-normal lengths up to 500 of 16 rows or 64 documents: most are short."""
    drawn = np.random.RandomState(7).lognormal(4.0, 0.9, 64 if packed else 16)
    return [int(length) for length in np.clip(drawn, 4, 500)]


def cpu(work: Callable[[Sequence[int]], Any], lengths: Sequence[int]) -> float:
    """Return the CPU seconds of a call, from as many as take a millisecond."""
    calls, began = 0, time.process_time()
    while (taken := time.process_time() - began) < 1e-3 or not calls:
        work(lengths)
        calls += 1
    return taken / calls


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return bool(left == right)


def compare(name: str, form: Form) -> None:
    lengths = lengths_of(form.packed)
    ways = [form.made, form.by_token, *([form.by_row] if form.by_row else [])]
    results = [way(lengths) for way in ways]
    assert all(same(results[0], other) for other in results[1:]), (
        f"{name}: the loops make another mask"
    )
    seen = [[cpu(way, lengths) for way in ways] for _ in range(ROUNDS)]
    ratios = [median(each[way] / each[0] for each in seen) for way in range(1, len(ways))]
    shape = (
        "×".join(map(str, results[0].shape))
        if isinstance(results[0], Tensor)
        else f"{len(results[0])} ends"
    )
    by_row = f"{ratios[1]:9.1f}" if form.by_row else "        –"
    print(
        f"  {name:24} {shape:>16} {median(each[0] for each in seen) * 1e3:9.3f} {ratios[0]:9.1f}"
        f" {by_row}",
        flush=True,
    )


class Largest(TorchDispatchMode):
    """Records the most elements of any tensor that is made, by kind.

    A view of another tensor counts as its own size.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[torch.dtype, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        out = function(*arguments, **(keywords or {}))
        for one in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(one, Tensor):
                self.elements[one.dtype] = max(self.elements.get(one.dtype, 0), one.numel())
        return out


def peak(name: str, tokens: int) -> None:
    """Return the peak of this process, which has made nothing before."""
    form = FORMS[name]
    lengths = [tokens // DOCUMENTS] * DOCUMENTS if form.packed else [tokens]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Largest() as largest:
        made = form.made(lengths)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    floats = [
        dtype
        for dtype, elements in largest.elements.items()
        if dtype.is_floating_point and elements >= tokens
    ]
    assert not floats, f"{name}: {floats} of {tokens} elements and more"
    size = f"{made.nbytes / 2**20:.0f}" if isinstance(made, Tensor) else "–"
    biggest = (
        ", ".join(
            f"{str(dtype).removeprefix('torch.')} {elements:,}"
            for dtype, elements in largest.elements.items()
        )
        or "none"
    )
    print(f"  {name:24} {size:>8} {grown / 2**10:8.0f}  {biggest}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--peak", choices=FORMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        peak(options.peak, options.tokens)
        return
    print(
        f"1 thread, medians of {ROUNDS}: milliseconds, and how many times as long a loop takes over"
        " tokens, over rows or documents"
    )
    for name, form in FORMS.items():
        compare(name, form)
    print(
        f"at {options.tokens} tokens: MiB of the mask, MiB at the peak, and the elements of the"
        " largest tensor of each kind"
    )
    for name in FORMS:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.masks",
                "--peak",
                name,
                "--tokens",
                str(options.tokens),
            ],
            check=True,
        )


if __name__ == "__main__":
    main()
