"""Boxes: how far those of an answer lie over those of the reference."""

import math
from collections.abc import Sequence
from typing import Any

from vtool.data.boxes import tagged_boxes
from vtool.evaluation.metrics.json_text import parsed
from vtool.evaluation.metrics.metric import Metric

Box = tuple[float, float, float, float]
_KEYS = ("bbox_2d", "bbox", "box")


def boxes_in(text: str) -> list[Box] | None:
    """Return the boxes [x1, y1, x2, y2] of a text of JSON: one, a list, or objects with one each.

    Boxes between tags, such as <|box_start|> and <box>, may have other text around them. None where
    it has anything else. An empty list has no box.
    """
    if tagged := tagged_boxes(text):
        return [_ordered(*box.edges) for box in tagged]
    value = parsed(text)
    found = value if isinstance(value, list) and not _is_box(value) else [value]
    made = []
    for each in found:
        own: Any = each
        if isinstance(each, dict):
            own = next((each[key] for key in _KEYS if key in each), None)
        if not _is_box(own):
            return None
        made.append(_ordered(*map(float, own)))
    return made


def _ordered(left: float, top: float, right: float, bottom: float) -> Box:
    return min(left, right), min(top, bottom), max(left, right), max(top, bottom)


def _is_box(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(
            isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)
            for one in value
        )
    )


def overlap(first: Box, second: Box) -> float:
    """Return the intersection over the union of two boxes; of two points that are one, 1."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    shared = max(0.0, width) * max(0.0, height)
    union = _area(first) + _area(second) - shared
    return shared / union if union else float(first == second)


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def score(answer: str, reference: str) -> float:
    """Return the mean overlap of boxes: the pairs' Σ IoU over the larger number of boxes.

    Pairs are made as detection benchmarks do (Everingham et al. 2010), the largest overlap first,
    each box once. So a box too many and one too few both cost.
    """
    given, wanted = boxes_in(answer), boxes_in(reference)
    if given is None or wanted is None:
        return 0.0
    if not given or not wanted:
        return float(given == wanted)
    pairs = sorted(
        ((overlap(a, b), i, j) for i, a in enumerate(given) for j, b in enumerate(wanted)),
        key=lambda pair: (-pair[0], pair[1], pair[2]),
    )
    taken: set[int] = set()
    met: set[int] = set()
    total = 0.0
    for value, i, j in pairs:
        if i not in taken and j not in met:
            taken.add(i)
            met.add(j)
            total += value
    return total / max(len(given), len(wanted))


def _fits(references: Sequence[str]) -> bool:
    """Return if each reference has a box; four plain numbers might be anything else."""
    return all(
        boxes_in(reference) and (tagged_boxes(reference) or any(key in reference for key in _KEYS))
        for reference in references
    )


def _refuses(reference: str) -> bool:
    return boxes_in(reference) is None


METRIC = Metric("iou", "mean IoU of boxes", score, fits=_fits, refuses=_refuses)
