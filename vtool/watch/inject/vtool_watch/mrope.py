"""The positions of texts with images, compared with M-RoPE's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .learnt import PassRecord
from .model import FoundModel
from .rows import documents, visual_owners, visuals_of_document

MODEL_TYPES = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "glm4v",
    "glm4v_moe",
)
"""Model types whose images have positions as Qwen2-VL's (arXiv 2409.12191, section 2.1)."""


def mrope_facts(found: FoundModel, record: PassRecord) -> list[dict[str, Any]]:
    """Return how the positions of each text with images of a captured batch are."""
    inputs, given = record.alone.get("inputs") or {}, record.alone.get("positions")
    ids, config = inputs.get("input_ids"), getattr(found.model, "config", None)
    if not isinstance(ids, Tensor) or not isinstance(given, Tensor) or given.dim() < 2:
        return []
    if getattr(config, "model_type", None) not in MODEL_TYPES or given.shape[-1] != ids.shape[-1]:
        return []
    texts = documents(inputs, ids)
    owners = visual_owners(inputs, ids, texts, config) or {}
    seen = []
    for number, text in enumerate(texts):
        grids = visuals_of_document(inputs, owners, number).get("image_grid_thw")
        mine = given[..., min(text.row, given.shape[-2] - 1), :][..., text.columns.to(given.device)]
        own = ids[text.row, text.columns.to(ids.device)].tolist()
        places = wrong_places(config, own, grids, mine)
        if places is not None:
            seen.append({"row": text.row, "tokens": len(text), **places})
    return seen


def wrong_places(config: Any, ids: list[int], grids: Any, given: Tensor) -> dict[str, Any] | None:
    """Return how many tokens of a text have other positions than M-RoPE's, up to a constant.

    None where there is nothing to compare them with: a model of another kind, a text with a video,
    or with other images than its grids.

    Args:
        ids: of the text alone.
        grids: patches along time, height and width of each of its images.
        given: positions along each axis, [axes, tokens] or [tokens].
    """
    image = getattr(config, "image_token_id", None)
    merge = getattr(getattr(config, "vision_config", None), "spatial_merge_size", None)
    if getattr(config, "model_type", None) not in MODEL_TYPES or image not in ids or not merge:
        return None
    if getattr(config, "video_token_id", None) in ids or not isinstance(grids, Tensor):
        return None
    places = _places(ids, image, [[t, h // merge, w // merge] for t, h, w in grids.tolist()])
    if places is None or given.shape[-1] != len(ids):
        return None
    axes = given if given.dim() > 1 else given[None]
    axes = axes[-3:].expand(3, -1).cpu().long()
    apart = axes - axes.new_tensor(places).T
    away = (apart != apart[0, 0]).any(0)
    return {"wrong": int(away.sum()), "as_text": bool((axes == axes[:1]).all())}


def _places(
    ids: list[int], image: int, grids: list[list[int]]
) -> list[tuple[int, int, int]] | None:
    """Return the position of each token in time, height and width; None: grids do not fit.

    Text counts up in all three at once. An image's tokens have the time at which it begins, and
    their row and column counted from there; what follows is one after the largest of them.
    """
    left, found, at, now = list(grids), [], 0, 0
    while at < len(ids):
        if ids[at] != image:
            found.append((now, now, now))
            at, now = at + 1, now + 1
            continue
        if not left:
            return None
        times, high, wide = left.pop(0)
        size = times * high * wide
        if times != 1 or ids[at : at + size] != [image] * size:
            return None
        found += [(now, now + y, now + x) for y in range(high) for x in range(wide)]
        at, now = at + size, now + max(high, wide)
    return None if left else found
