"""Short digests of tensors, which wait for no device until they are read."""

from __future__ import annotations

import ctypes
import functools
import hashlib

import torch
from torch import Tensor

_LEAF = 1 << 12
"""Elements of which each has a factor of its own; a longer row is a tree of such sums."""
_AT_ONCE, _AT_ONCE_ON_CPU = 1 << 22, 1 << 17
"""Elements whose products are held at a time; on a CPU, as many as its caches hold."""


def checksum(tensor: Tensor) -> Tensor:
    """Return an integer that a tensor's bytes decide, on its device: nothing waits for it."""
    return checksums(tensor.detach().reshape(1, tensor.numel()))[0]


def checksums(tensor: Tensor) -> Tensor:
    """Return `checksum` for each of a tensor's first axis.

    In the middle of a step, where caches are cold, a view costs microseconds: none is made that is
    not needed.
    """
    flat = tensor.detach() if tensor.requires_grad else tensor
    flat = torch.view_as_real(flat) if flat.is_complex() else flat
    flat = flat if flat.is_contiguous() else flat.contiguous()
    flat = flat.to(torch.uint8) if flat.dtype == torch.bool else flat
    if flat.dim() != 2:
        count = flat.shape[0] if flat.dim() else 1
        flat = flat.reshape(count, flat.numel() // max(1, count))
    size = flat.element_size()
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    if flat.numel() and flat.shape[1] * size % 8 == 0:
        width = torch.int64  # fewer of them, and no copy but where bytes begin between two
        flat = flat.clone() if flat.storage_offset() * size % 8 else flat
    flat = flat if flat.dtype == width else flat.view(width)
    while flat.shape[1] > _LEAF:
        leaves = flat.shape[1] // _LEAF
        whole, rest = flat[:, : leaves * _LEAF], flat[:, leaves * _LEAF :]
        flat = torch.cat([_sums(whole.unflatten(1, (leaves, _LEAF))), rest.to(torch.int64)], 1)
    if flat.numel() <= _at_once(flat):
        return _sums_at_once(flat)
    return _sums(flat[:, None])[:, 0]


def _sums(leaves: Tensor) -> Tensor:
    """Return the sum of products, which wraps around, for each leaf of [N, leaves, elements].

    Factors are odd, so that one element that differs is always seen, and look drawn by chance. Of a
    product, high bits only move further up: two signs that change would be lost. So they are
    brought down first.
    """
    _, each, length = leaves.shape
    most = _at_once(leaves)
    if leaves.numel() <= most:
        return _sums_at_once(leaves)
    wide = max(1, most // length)
    deep = max(1, wide // each)
    parts = [rows.split(wide, 1) for rows in leaves.split(deep)]
    return torch.cat([torch.cat([_sums_at_once(part) for part in row], 1) for row in parts])


def _at_once(leaves: Tensor) -> int:
    return _AT_ONCE_ON_CPU if leaves.device.type == "cpu" else _AT_ONCE


def _sums_at_once(leaves: Tensor) -> Tensor:
    leaves = leaves if leaves.dtype == torch.int64 else leaves.to(torch.int64)
    mixed = leaves >> 32
    mixed ^= leaves
    mixed *= _first_factors(leaves.device, leaves.shape[-1])
    return mixed.sum(-1)


@functools.lru_cache(maxsize=64)
def _first_factors(device: torch.device, count: int) -> Tensor:
    return _factors(device)[:count]


@functools.cache
def _factors(device: torch.device) -> Tensor:
    place = torch.arange(_LEAF, device=device, dtype=torch.int64)
    mixed = place * 0x1E3779B97F4A7C15 + 0x2545F4914F6CDD1D
    mixed ^= mixed >> 31
    mixed *= 0x3F58476D1CE4E5B9
    if type(mixed) is not Tensor:
        raise TypeError("tensors are not real here")  # nor would those be that are kept
    return mixed ^ (mixed >> 29) | 1


def sampled_checksum(tensor: Tensor, most: int = 1 << 18) -> Tensor:
    """Return the checksum of at most so many elements, evenly taken."""
    flat = tensor.detach().reshape(-1)
    return checksum(flat[:: -(-flat.numel() // most)] if flat.numel() > most else flat)


def digests(sums: list[Tensor]) -> list[str]:
    """Return checksums as text, read from the device at once."""
    if not sums:
        return []
    devices = {each.device for each in sums}
    where = next(iter(devices)) if len(devices) == 1 else torch.device("cpu")
    numbers = torch.stack([each.to(where) for each in sums]).cpu().tolist()
    return [digest_of_bytes(str(number).encode()) for number in numbers]


def digest_of_bytes(data: bytes) -> str:
    """Return twelve digits that bytes decide."""
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def tensor_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor, without numpy, which not every torch has installed with it."""
    whole = tensor.cpu().contiguous()  # a device's own memory cannot be read: the process would die
    size = whole.numel() * whole.element_size()
    return ctypes.string_at(whole.data_ptr(), size) if size else b""
