"""Digests of tensors: whatever changes in one is seen, and how it lies in memory is not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vtool.watch.inject.vtool_watch import digests
from vtool.watch.inject.vtool_watch.digests import checksum, checksums, tensor_bytes

LENGTHS = [1, 3, 64, 4095, 4096, 4097, 8192, 8300, 20001]
KINDS = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]


def made(length: int, kind: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(length)
    if kind == torch.bool:
        return torch.rand(length) > 0.5
    values = torch.randn(length)
    return values.to(kind) if kind.is_floating_point else (100 * values.abs()).to(kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_one_element_that_changes_is_seen_wherever_it_stands(
    length: int, kind: torch.dtype
) -> None:
    before = made(length, kind)
    for place in {0, length // 2, length - 1, min(4096, length - 1)}:
        after = before.clone()
        after[place] = ~after[place] if kind == torch.bool else after[place] + 1
        assert checksum(after) != checksum(before)


def two_signs(values: Tensor) -> Tensor:
    return torch.cat([-values[:2], values[2:]])


def two_exchanged(values: Tensor) -> Tensor:
    return torch.cat([values[2:4], values[:2], values[4:]])


def all_signs(values: Tensor) -> Tensor:
    return -values


def leaves_exchanged(values: Tensor) -> Tensor:
    return torch.cat([values[8192:16384], values[:8192], values[16384:]])


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("change", [two_signs, two_exchanged, all_signs, leaves_exchanged])
def test_changes_that_a_sum_would_miss_are_seen(
    change: Callable[[Tensor], Tensor], kind: torch.dtype
) -> None:
    before = made(20000, kind)
    assert checksum(change(before)) != checksum(before)


def test_rows_have_the_checksum_that_each_has_by_itself() -> None:
    rows = torch.randn(5, 3, 4099)
    alone = torch.stack([checksum(row) for row in rows])
    assert torch.equal(checksums(rows), alone)
    assert len(set(alone.tolist())) == 5


@pytest.mark.parametrize("length", LENGTHS)
def test_where_a_tensor_lies_in_memory_does_not_matter(length: int) -> None:
    values = made(length)
    shifted = torch.cat([torch.zeros(1), values])[1:]  # eight bytes do not begin at its first
    spread = torch.stack([values, values], 1)[:, 0]
    assert checksum(shifted) == checksum(spread) == checksum(values)


def test_a_large_tensor_in_blocks_has_the_same_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(7, 20001)
    whole = checksums(rows)
    monkeypatch.setattr(digests, "_AT_ONCE_ON_CPU", 5000)
    assert torch.equal(checksums(rows), whole)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)], ids=str)
def test_nothing_has_a_checksum_too(shape: tuple[int, ...]) -> None:
    assert checksums(torch.zeros(shape)).shape == (shape[0],)
    assert checksum(torch.zeros(shape)) == 0


def test_bytes_are_those_in_memory() -> None:
    values = torch.arange(12).view(3, 4)
    assert tensor_bytes(values) == values.numpy().tobytes()
    assert tensor_bytes(values.T) == values.numpy().T.tobytes()
    assert tensor_bytes(values[:0]) == b""
