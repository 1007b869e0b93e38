"""Texts and images in a batch as the model gets it: cuts, digests, and one text by itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

VISUALS = (
    ("image_grid_thw", "pixel_values", "image_token_id"),
    ("video_grid_thw", "pixel_values_videos", "video_token_id"),
)
"""Grids (which some models lack), patches, and the id of their places."""


@dataclass(frozen=True)
class Document:
    """One text of a batch: a row without its padding, or a part of a packed one."""

    row: int
    columns: Tensor
    """Places in the row, on the CPU."""

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def span(self) -> tuple[int, int] | None:
        """The first place and the one behind the last, if all between are this text's."""
        begin, end = int(self.columns[0]), int(self.columns[-1]) + 1
        return (begin, end) if end - begin == len(self.columns) else None


def row_mask(inputs: dict[str, Any], ids: Tensor) -> Tensor:
    """Return where a batch has tokens: all places, or those of a mask of the ids' shape."""
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        return mask.cpu() != 0
    return torch.ones(ids.shape, dtype=torch.bool, device="cpu")


def documents(inputs: dict[str, Any], ids: Tensor) -> list[Document]:
    """Return the texts of a batch: padding left out, packed rows cut.

    A row is cut where `cu_seq_lens_q` says so, where its mask counts texts (1, 1, 2, 2, 2, 0), or
    where positions begin anew.
    """
    keep = row_mask(inputs, ids)
    mask, bounds = inputs.get("attention_mask"), inputs.get("cu_seq_lens_q")
    numbered = isinstance(mask, Tensor) and mask.shape == ids.shape and int(mask.max()) > 1
    found = []
    for row in range(ids.shape[0]):
        at = keep[row].nonzero()[:, 0]
        if not len(at):
            continue
        if isinstance(bounds, Tensor) and ids.shape[0] == 1:
            starts = torch.isin(at, bounds.cpu().long())
        elif numbered and isinstance(mask, Tensor):
            number = mask[row].cpu()[at]
            starts = torch.cat([number[:1] > 0, number[1:] != number[:-1]])
        elif (again := _starts(inputs.get("position_ids"), row, at, ids.shape)) is not None:
            starts = again
        else:
            if len(at) > 1:
                found.append(Document(row, at))
            continue
        cuts = [*sorted({0, *starts.nonzero()[:, 0].tolist()}), len(at)]
        for begin, end in zip(cuts, cuts[1:]):
            if end - begin > 1:
                found.append(Document(row, at[begin:end]))
    return found


def _starts(positions: Any, row: int, at: Tensor, shape: torch.Size) -> Tensor | None:
    """Return where positions begin anew among the places of a row; None: nowhere."""
    if not isinstance(positions, Tensor) or positions.shape[-1] != shape[-1]:
        return None
    text = positions.dim() == 2 or positions.shape[0] == 4  # four axes: text first, then M-RoPE
    if positions.dim() == 3:
        positions = positions[0]
    if positions.dim() != 2:
        return None
    p = positions[min(row, positions.shape[0] - 1)].cpu()[at]
    again = p[1:] <= p[:-1] if text else p[1:] < p[:-1]
    if not bool(again.any()):
        return None
    return torch.cat([torch.zeros(1, dtype=torch.bool), again & (p[1:] == 0)])


def visual_owners(
    inputs: dict[str, Any], ids: Tensor, texts: list[Document], config: Any
) -> dict[str, list[int]] | None:
    """Return, for each kind of patches, the document that each image or video is in.

    Images without grids, [images, channels, height, width], have equally many places each (LLaVA,
    Gemma 3, InternVL). None: there are pixels that cannot be told apart by document.
    """
    owners = {}
    for grid_name, pixels_name, token_name in VISUALS:
        grid, pixels = inputs.get(grid_name), inputs.get(pixels_name)
        if pixels is None:
            continue
        token = getattr(config, token_name, getattr(config, f"{token_name[:-3]}_index", None))
        if token is None:
            return None
        here = ids.cpu() == token
        left = [int(_ids_of(here, text).sum()) for text in texts]
        sizes = _places(grid, pixels, sum(left), config)
        if sizes is None:
            return None
        owner, number = [], 0
        for places in sizes:
            while number < len(left) and left[number] == 0:
                number += 1
            if number == len(left) or left[number] < places:
                return None
            left[number] -= places
            owner.append(number)
        if any(left):
            return None
        owners[pixels_name] = owner
    known = {name for _, name, _ in VISUALS}
    others = [n for n, v in inputs.items() if n.startswith("pixel") and n not in known]
    return None if any(inputs[n] is not None for n in others) else owners


def _places(grid: Any, pixels: Any, whole: int, config: Any) -> list[int] | None:
    """Return how many places each image has, of so many in the batch; None: that is not known."""
    if isinstance(grid, Tensor):
        merge = getattr(getattr(config, "vision_config", None), "spatial_merge_size", None)
        return (grid.prod(-1) // merge**2).tolist() if merge else None
    count = _images(pixels)
    return [whole // count] * count if count and whole and whole % count == 0 else None


def _images(pixels: Any) -> int | None:
    """Count images that are a tensor of four dimensions, or the count that is kept of them."""
    if isinstance(pixels, Tensor):
        return len(pixels) if pixels.dim() == 4 else None
    return pixels if type(pixels) is int else None


def visuals_of(
    inputs: dict[str, Any], owners: dict[str, list[int]], number: int
) -> dict[str, Tensor]:
    """Return the patches and grids of one document."""
    given = {}
    for grid_name, pixels_name, _ in VISUALS:
        owner = owners.get(pixels_name, [])
        if number not in owner:
            continue
        grid, pixels = inputs.get(grid_name), inputs[pixels_name]
        mine = [k for k, each in enumerate(owner) if each == number]
        if not isinstance(grid, Tensor):
            given[pixels_name] = pixels[mine]
            continue
        parts = pixels.split(grid.prod(-1).tolist())
        given[pixels_name] = torch.cat([parts[k] for k in mine])
        given[grid_name] = grid[mine]
    return given


def _ids_of(ids: Tensor, text: Document) -> Tensor:
    """Return the ids of one text; those that stand together are not gathered one by one."""
    return ids[text.row, slice(*text.span) if text.span else text.columns]


def checksum(tensor: Tensor) -> Tensor:
    """Return two integers that a tensor's bytes decide, on its device: nothing waits for it."""
    return checksums(tensor.detach().reshape(1, tensor.numel()))[0]


def checksums(tensor: Tensor) -> Tensor:
    """Return `checksum` for each of a tensor's first axis, [N, 2]: their sums wrap around."""
    flat = tensor.detach().contiguous()
    flat = torch.view_as_real(flat) if flat.is_complex() else flat
    flat = flat.to(torch.uint8) if flat.dtype == torch.bool else flat
    count = flat.shape[0] if flat.dim() else 1
    flat = flat.reshape(count, flat.numel() // max(1, count))
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    if flat.numel() and flat.shape[1] * flat.element_size() % 8 == 0:
        width = torch.int64  # fewer of them, and no copy but where bytes begin between two
        flat = flat.clone() if flat.storage_offset() * flat.element_size() % 8 else flat
    flat = flat.view(width)
    total = torch.zeros(len(flat), 2, dtype=torch.int64, device=flat.device)
    size = max(1, (1 << 22) // max(1, len(flat)))
    for begin in range(0, flat.shape[1], size):
        part = flat[:, begin : begin + size].to(torch.int64)
        place = torch.arange(begin, begin + part.shape[1], device=flat.device, dtype=torch.int64)
        # each place has a factor of its own, so that an exchange of two is seen; high bits, which
        # a product only moves further up, are brought down
        mixed = (part ^ (part >> 29)) * (place * 0x1E3779B97F4A7C15 + 0x2545F4914F6CDD1D | 1)
        total[:, 0] += part.sum(1)
        total[:, 1] += (mixed ^ (mixed >> 32)).sum(1)
    return total


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
    rows = torch.stack([each.to(where) for each in sums]).cpu().tolist()
    return [digest_of(str(row).encode()) for row in rows]


def digest_of(data: bytes) -> str:
    """Return twelve digits that bytes decide."""
    return hashlib.blake2b(data, digest_size=6).hexdigest()


@dataclass
class Seen:
    """A batch as the ledger keeps it until the step: small, and nothing waited for the device."""

    inputs: dict[str, Any]
    ids: Tensor
    pixels: list[tuple[str, Tensor]]
    """Name, and a checksum for each of the first axis: a patch, or an image."""
    micro: int


_SMALL = ("attention_mask", "position_ids", "cu_seq_lens_q", "image_grid_thw", "video_grid_thw")


def keep(inputs: dict[str, Any], ids: Tensor, micro: int) -> Seen:
    """Return what the ledger needs of a batch."""
    small: dict[str, Any] = {
        name: value.detach().clone()
        for name in _SMALL
        if isinstance(value := inputs.get(name), Tensor) and value.numel() <= 8 * ids.numel() + 64
    }
    sums = []
    for name, value in inputs.items():
        if not (name.startswith("pixel") or name.startswith("input_features")):
            continue
        if not isinstance(value, Tensor):
            continue
        sums.append((name, checksums(value)))
        small[name] = _images(value) or True
    return Seen(small, ids.detach().clone(), sums, micro)


def _of_images(name: str, sums: Tensor, inputs: dict[str, Any]) -> list[str]:
    """Return what tells the images of a batch apart: of several patches where there are grids."""
    grid = next((inputs.get(g) for g, p, _ in VISUALS if p == name), None)
    if isinstance(grid, Tensor) and int(grid.prod(-1).sum()) == len(sums):
        parts = sums.split(grid.prod(-1).tolist())
        return [digest_of(part.contiguous().numpy().tobytes()) for part in parts]
    return [str(part) for part in sums.tolist()]


def ledger(seen: Seen, config: Any) -> dict[str, Any]:
    """Return the fields of `rows`, but for `data` and `inputs`."""
    ids = seen.ids.cpu()
    inputs = {n: v.cpu() if isinstance(v, Tensor) else v for n, v in seen.inputs.items()}
    texts = documents(inputs, ids)
    own: list[list[str]] = [[] for _ in texts]
    pixels = "rows" if seen.pixels else None
    owners = visual_owners(inputs, ids, texts, config) if seen.pixels else {}
    for name, sums in seen.pixels:
        values = _of_images(name, sums.cpu(), inputs)
        rows = [text.row for text in texts]
        if owners is not None and name in owners:
            for value, owner in zip(values, owners[name]):
                own[owner].append(value)
        elif len(values) == ids.shape[0] and len(set(rows)) == len(rows):
            for each, row in zip(own, rows):
                each.append(values[row])
        else:
            pixels = "batch"
            own = [each + values for each in own]
    return {
        "micro": seen.micro,
        "rows": [
            digest_of(_ids_of(ids, text).numpy().tobytes() + "".join(more).encode())
            for text, more in zip(texts, own)
        ],
        "lengths": [len(text) for text in texts],
        "row_of": [text.row for text in texts],
        "pixels": pixels,
        "tokens": ids.numel(),
    }
