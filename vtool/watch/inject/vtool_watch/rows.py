"""Texts and images in a batch as the model gets it: cuts, digests, and one text by itself."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .digests import checksums, digest_of_bytes, tensor_bytes

_VISUALS = (
    ("image_grid_thw", "pixel_values", "image_token_id"),
    ("video_grid_thw", "pixel_values_videos", "video_token_id"),
)
"""Grids (which some models lack), patches, and the id of their places."""


class Document:
    """One text of a batch: a row without its padding, or a part of a packed one.

    Attributes:
        row: its row in the batch.
        begin: its first place in the row.
        end: the place after its last.
        places: its places, on the CPU, where not all from the first to the last are its own.
    """

    __slots__ = ("begin", "end", "places", "row")  # many are made in each step

    def __init__(self, row: int, begin: int, end: int, places: Tensor | None = None) -> None:
        self.row, self.begin, self.end, self.places = row, begin, end, places

    def __len__(self) -> int:
        return self.end - self.begin if self.places is None else len(self.places)

    @property
    def columns(self) -> Tensor:
        """The places in the row that are its own, on the CPU."""
        if self.places is not None:
            return self.places
        return torch.arange(self.begin, self.end, device="cpu")  # whatever the default device is


def _document(row: int, places: Tensor) -> Document:
    begin, end = int(places[0]), int(places[-1]) + 1
    return Document(row, begin, end, None if end - begin == len(places) else places)


def token_mask(inputs: dict[str, Any], ids: Tensor) -> Tensor:
    """Return where a batch has tokens: all places, or those of a mask of the ids' shape."""
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        return mask.cpu() != 0
    return torch.ones(ids.shape, dtype=torch.bool, device="cpu")


def documents(inputs: dict[str, Any], ids: Tensor) -> list[Document]:
    """Return the texts of a batch: padding left out, packed rows cut.

    A row is cut where `cu_seq_lens_q` says so, where its mask counts texts (1, 1, 2, 2, 2, 0), or
    where positions start again.
    """
    keep = token_mask(inputs, ids)
    mask, bounds = inputs.get("attention_mask"), inputs.get("cu_seq_lens_q")
    numbered = isinstance(mask, Tensor) and mask.shape == ids.shape and int(mask.max()) > 1
    packed = isinstance(bounds, Tensor) and ids.shape[0] == 1
    if not packed and not numbered:
        whole = _unbroken(keep)
        if whole is not None and not _starts_again(inputs.get("position_ids"), keep):
            return whole
    found = []
    for row in range(ids.shape[0]):
        at = keep[row].nonzero()[:, 0]
        if not len(at):
            continue
        if packed and isinstance(bounds, Tensor):
            starts = torch.isin(at, bounds.cpu().long())
        elif numbered and isinstance(mask, Tensor):
            number = mask[row].cpu()[at]
            starts = torch.cat([number[:1] > 0, number[1:] != number[:-1]])
        elif (again := _starts(inputs.get("position_ids"), row, at, ids.shape)) is not None:
            starts = again
        else:
            if len(at) > 1:
                found.append(_document(row, at))
            continue
        cuts = [*sorted({0, *starts.nonzero()[:, 0].tolist()}), len(at)]
        for begin, end in zip(cuts, cuts[1:]):
            if end - begin > 1:
                found.append(_document(row, at[begin:end]))
    return found


_MOST_ROWS = 64


def pair_facts(ids: Tensor, keep: Tensor) -> list[dict[str, Any]] | None:
    """Return how the halves of a batch pair up: rows with the same ids at their beginning.

    None: they are no pairs, for rows of most of them begin with different ids.
    """
    half = min(ids.shape[0] // 2, _MOST_ROWS // 2)
    if ids.shape[0] % 2 or not half:
        return None
    found: list[dict[str, Any]] = []
    for row in range(half):
        other = ids.shape[0] // 2 + row
        a, b = ids[row][keep[row]], ids[other][keep[other]]
        size = min(len(a), len(b))
        apart = (a[:size] != b[:size]).nonzero()
        prefix = int(apart[0, 0]) if len(apart) else size
        alike = prefix == len(a) == len(b)
        found.append({"rows": [row, other], "prefix": prefix, "alike": alike, "all": 0})
    first = ids[0][keep[0]]
    shared = len(first)
    for row in range(1, min(ids.shape[0], _MOST_ROWS)):
        own = ids[row][keep[row]][:shared]
        apart = (own != first[: len(own)]).nonzero()
        shared = int(apart[0, 0]) if len(apart) else len(own)
    for each in found:
        each["all"] = shared
    return found if sum(each["prefix"] > 0 for each in found) * 2 > half else None


def _unbroken(keep: Tensor) -> list[Document] | None:
    """Return each row's text; None where one has gaps in it."""
    rows, length = keep.shape
    raw = tensor_bytes(keep)  # searched faster than a few operations of torch can begin
    if b"\0" not in raw:
        return [Document(row, 0, length) for row in range(rows)] if length > 1 else []
    found = []
    for row in range(rows):
        bits = raw[row * length : (row + 1) * length]
        begin, end = bits.find(1), bits.rfind(1) + 1
        if b"\0" in bits[begin:end]:
            return None
        if end - begin > 1:
            found.append(Document(row, begin, end))
    return found


def _positions(positions: Any, length: int) -> tuple[Tensor, bool] | None:
    """Return the positions of rows (or of all rows), and whether images do not repeat them."""
    if not isinstance(positions, Tensor) or positions.shape[-1] != length:
        return None
    text = positions.dim() == 2 or positions.shape[0] == 4  # four axes: text first, then M-RoPE
    if positions.dim() == 3:
        positions = positions[0]
    return (positions.cpu(), text) if positions.dim() == 2 else None


def _starts_again(positions: Any, keep: Tensor) -> bool:
    """Return whether positions start again in any row."""
    known = _positions(positions, keep.shape[1])
    if known is None:
        return False
    p, text = known
    again = p[:, 1:] <= p[:, :-1] if text else p[:, 1:] < p[:, :-1]
    return bool((again & keep[:, 1:] & keep[:, :-1]).any())


def _starts(positions: Any, row: int, at: Tensor, shape: torch.Size) -> Tensor | None:
    """Return where positions start again among the places of a row; None: nowhere."""
    known = _positions(positions, shape[-1])
    if known is None:
        return None
    p, text = known[0][min(row, len(known[0]) - 1)][at], known[1]
    again = p[1:] <= p[:-1] if text else p[1:] < p[:-1]
    if not bool(again.any()):
        return None
    return torch.cat([torch.zeros_like(again[:1]), again & (p[1:] == 0)])


def visual_owners(
    inputs: dict[str, Any], ids: Tensor, texts: list[Document], config: Any
) -> dict[str, list[int]] | None:
    """Return, for each kind of patches, the document that each image or video is in.

    Images without grids, [images, channels, height, width], have equally many places each (LLaVA,
    Gemma 3, InternVL). None: there are pixels that cannot be assigned to a document.
    """
    owners = {}
    for grid_name, pixels_name, token_name in _VISUALS:
        grid, pixels = inputs.get(grid_name), inputs.get(pixels_name)
        if pixels is None:
            continue
        token = getattr(config, token_name, None)
        if token is None:
            token = getattr(config, f"{token_name[:-3]}_index", None)
        if token is None:
            return None
        left = _count(int(token), ids, texts)
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
    known = {name for _, name, _ in _VISUALS}
    others = [n for n, v in inputs.items() if n.startswith("pixel") and n not in known]
    return None if any(inputs[n] is not None for n in others) else owners


def _count(token: int, ids: Tensor, texts: list[Document]) -> list[int]:
    """Count the places of each text that have a token."""
    here, length = ids == token, ids.shape[1]
    raw = tensor_bytes(here)
    return [
        raw.count(1, t.row * length + t.begin, t.row * length + t.end)
        if t.places is None
        else int(here[t.row, t.places].sum())
        for t in texts
    ]


def _patches(grid: Tensor) -> list[int]:
    """Return how many patches each image has."""
    return [math.prod(each) for each in grid.tolist()]


def _places(grid: Any, pixels: Any, whole: int, config: Any) -> list[int] | None:
    """Return how many places each image has, of so many in the batch; None: that is not known."""
    if isinstance(grid, Tensor):
        merge = getattr(getattr(config, "vision_config", None), "spatial_merge_size", None)
        return [each // merge**2 for each in _patches(grid)] if merge else None
    count = _images(pixels)
    return [whole // count] * count if count and whole and whole % count == 0 else None


def _images(pixels: Any) -> int | None:
    """Count images that are a tensor of four dimensions, or the count that is kept of them."""
    if isinstance(pixels, Tensor):
        return len(pixels) if pixels.dim() == 4 else None
    return pixels if type(pixels) is int else None


def visuals_of_document(
    inputs: dict[str, Any], owners: dict[str, list[int]], number: int
) -> dict[str, Tensor]:
    """Return the patches and grids of one document."""
    given = {}
    for grid_name, pixels_name, _ in _VISUALS:
        owner = owners.get(pixels_name, [])
        if number not in owner:
            continue
        grid, pixels = inputs.get(grid_name), inputs[pixels_name]
        mine = [k for k, each in enumerate(owner) if each == number]
        if not isinstance(grid, Tensor):
            given[pixels_name] = pixels[mine]
            continue
        parts = pixels.split(_patches(grid))
        given[pixels_name] = torch.cat([parts[k] for k in mine])
        given[grid_name] = grid[mine]
    return given


@dataclass
class KeptBatch:
    """A batch as the ledger keeps it until the step: small, and nothing waited for the device."""

    inputs: dict[str, Any]
    ids: Tensor
    pixels: list[tuple[str, Tensor]]
    """Name, and a checksum for each of the first axis: a patch, or an image."""
    micro: int
    mask_axes: int | None = None
    """The axes of the attention mask, where it is a tensor: rows and positions, or more."""


_SMALL = ("attention_mask", "position_ids", "cu_seq_lens_q", "image_grid_thw", "video_grid_thw")


def keep_batch(inputs: dict[str, Any], ids: Tensor, micro: int) -> KeptBatch:
    """Copy the small inputs of a batch, and the checksums of its pixels, for the ledger."""
    small: dict[str, Any] = {
        name: _copy(value)
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
    mask = inputs.get("attention_mask")
    axes = mask.dim() if isinstance(mask, Tensor) else None
    return KeptBatch(small, _copy(ids), sums, micro, axes)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone() if tensor.requires_grad else tensor.clone()


def _of_images(name: str, sums: Tensor, inputs: dict[str, Any]) -> list[bytes]:
    """Return a key for each image of a batch: of several patches where there are grids."""
    grid = next((inputs.get(g) for g, p, _ in _VISUALS if p == name), None)
    raw, one = tensor_bytes(sums), sums.element_size()
    if isinstance(grid, Tensor) and sum(patches := _patches(grid)) == len(sums):
        ends = list(itertools.accumulate(patches))
        return [raw[begin * one : end * one] for begin, end in zip([0, *ends], ends)]
    return [raw[begin : begin + one] for begin in range(0, len(raw), one)]


def _texts_of(ids: Tensor, texts: list[Document]) -> list[bytes]:
    """Return the bytes of each text's ids."""
    raw, size, length = tensor_bytes(ids), ids.element_size(), ids.shape[1]
    return [
        raw[(t.row * length + t.begin) * size : (t.row * length + t.end) * size]
        if t.places is None
        else tensor_bytes(ids[t.row, t.places])
        for t in texts
    ]


def ledger(seen: KeptBatch, config: Any) -> dict[str, Any]:
    """Return the fields of `rows`, but for `data` and `inputs`."""
    ids = seen.ids.cpu()
    inputs = {n: v.cpu() if isinstance(v, Tensor) else v for n, v in seen.inputs.items()}
    texts = documents(inputs, ids)
    own: list[list[bytes]] = [[] for _ in texts]
    pixels = "rows" if seen.pixels else None
    owners = visual_owners(inputs, ids, texts, config) if seen.pixels else {}
    rows = [text.row for text in texts]
    for name, sums in seen.pixels:
        values = _of_images(name, sums.cpu(), inputs)
        if owners is not None and name in owners:
            for value, owner in zip(values, owners[name]):
                own[owner].append(value)
        elif len(values) == ids.shape[0] and len(set(rows)) == len(rows):
            for each, row in zip(own, rows):
                each.append(values[row])
        else:
            pixels = "batch"
            all_of_them = digest_of_bytes(b"".join(values)).encode()
            own = [[*each, all_of_them] for each in own]
    return {
        "micro": seen.micro,
        "rows": [
            digest_of_bytes(b"".join((t, *more))) for t, more in zip(_texts_of(ids, texts), own)
        ],
        "lengths": [t.end - t.begin if t.places is None else len(t.places) for t in texts],
        "row_of": rows,
        "images": [digest_of_bytes(b"".join(each)) if each else None for each in own]
        if pixels == "rows" and rows == list(range(ids.shape[0]))
        else None,
        "pixels": pixels,
        "tokens": ids.numel(),
    }
