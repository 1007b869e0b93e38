"""Boxes and points in a row's text: found by their tags, their keys, or the words of a question.

Four numbers alone may be prices, a date or a row of a table, and are no box.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from vtool.data.row import Row

BOX_KEYS = ("bbox_2d", "box_2d", "bounding_box", "bboxes", "bbox", "boxes", "box")
"""Keys of JSON that have a box, or a list of them."""
_POINT_KEYS = ("point_2d", "coordinate")
_ACTION_KEYS = ("start_box", "end_box")
FORMS = {
    "json": "keys such as bbox_2d",
    "box_start": "<|box_start|>",
    "box": "<box>",
    "begin_of_box": "<|begin_of_box|>",
    "det": "<|det|>",
    "data-bbox": "data-bbox",
    "list": "lists of four numbers",
    "answer": "answers of lists of four numbers",
    "loc": "<loc0000>",
    "loc_": "<loc_0>",
    "point": "<point x=… y=…>",
}
"""The ways in which boxes are written, in words; an audit keeps the place of one here."""
OWN_SCALES = {"loc": 1024, "loc_": 1000, "point": 100}
"""Forms whose numbers are parts of the picture, whatever model reads them, and of how many."""
SCALES = {"thousand": 1000, "hundred": 100, "unit": 1}
"""Units that are parts of the picture, as `data.coordinates` names them, and of how many."""
BOX = np.dtype(
    [
        ("count", "<u2"),
        ("inverted", "<u2"),
        ("form", "u1"),
        ("fractions", "?"),
        ("reach", "<f4", (2,)),
        ("least", "<f4"),
        ("middle", "<f4", (2,)),
        ("size", "<u4", (2,)),
        ("resized", "<u4", (2,)),
    ]
)
"""The columns of a row's boxes, all zero for a row without: `RowBoxes` says what each is."""

_NUMBER = r"-?(?<!\d)\d{1,9}(?:\.\d{1,20})?(?!\d)"
_NUMBERS = re.compile(_NUMBER)
_LIST = r"[\[(][\[\]()\s\d.,-]*[\])]"
_KEYED = re.compile(
    rf"(?<!\w)(?P<key>{'|'.join((*BOX_KEYS, *_POINT_KEYS, *_ACTION_KEYS))})"
    rf"[\"']?\s*[:=]\s*[\"']?(?P<value>{_LIST})"
)
_INSIDE = r"(?P<value>[\[\]()\s\d.,-]+)"
_TAGGED = {
    "box_start": ("<|box_start|>", re.compile(rf"<\|box_start\|>{_INSIDE}<\|box_end\|>")),
    "box": ("<box>", re.compile(rf"<box>{_INSIDE}</box>")),
    "det": ("<|det|>", re.compile(rf"<\|det\|>{_INSIDE}<\|/det\|>")),
    "data-bbox": ("data-bbox", re.compile(r"data-bbox=[\"'](?P<value>[\s\d.,-]+)[\"']")),
}
_OF_GLM = re.compile(r"<\|begin_of_box\|>\s*(?P<value>\[\[[\[\]\s\d.,-]+\]\])\s*<\|end_of_box\|>")
_LOCATIONS = re.compile(r"(?:<loc\d{4}>){4}")
_OF_FLORENCE = re.compile(r"(?:<loc_\d{1,4}>){4}")
_OF_MOLMO = re.compile(
    rf"<points?\s+[^<>]{{0,200}}?\b(?:x1?)=\"\s*({_NUMBER})\"\s+(?:y1?)=\"\s*({_NUMBER})\""
)
_MORE_OF_MOLMO = re.compile(rf"\bx\d*=\"\s*({_NUMBER})\"\s+y\d*=\"\s*({_NUMBER})\"")
_FOUR = re.compile(
    rf"[\[(]\s*({_NUMBER})\s*,\s*({_NUMBER})\s*(?:\)\s*,\s*\(|,)\s*({_NUMBER})\s*,\s*({_NUMBER})"
    r"\s*[\])]"
)
# What a question says that asks for boxes, or has some, and what one says that may.
_ASKED = re.compile(
    r"bounding[ -]?box|\bbbox|\bx_?1\W+y_?1\b|\bx_?min\b|box coordinates|边界框|检测框",
    re.IGNORECASE,
)
_WHERE = re.compile(
    r"\b(?:locate|detect|ground|point (?:to|at)|where (?:is|are)|coordinates)\b|定位|框|坐标",
    re.IGNORECASE,
)
_BESIDE_LISTS = 64
"""Characters that an answer may have beside its lists, where it was only asked where things are."""


@dataclass(frozen=True, slots=True)
class WrittenBox:
    """A box (x1, y1, x2, y2) or a point (x, y) in the text of a row."""

    message: int
    part: int | None
    """The place of its text among the parts of the message; None where the content is a text."""
    form: str
    spans: tuple[tuple[int, int], ...]
    """The places of the numbers in the text, x first."""
    numbers: tuple[Fraction, ...]

    @property
    def edges(self) -> tuple[float, float, float, float]:
        """The box; a point is one without a width."""
        x, y, *rest = map(float, self.numbers)
        return (x, y, *rest) if rest else (x, y, x, y)  # type: ignore[return-value]

    @property
    def inverted(self) -> bool:
        """Check for a box whose second corner is not right of and below the first."""
        if len(self.numbers) == 2:
            return False
        left, top, right, bottom = self.numbers
        return right <= left or bottom <= top


def find_boxes(row: Row) -> list[WrittenBox]:
    """Return the boxes and points in a row's messages, in the order of its text."""
    found: list[WrittenBox] = []
    asked = ""
    for message, content in enumerate(row.messages):
        texts = list(_texts(content))
        if content["role"] != "assistant":
            asked = " ".join(text for _, text in texts)
        for part, text in texts:
            if _may_have(text):
                answered = content["role"] == "assistant"
                found += _of_text(text, message, part, asked, answered=answered)
    return found


def tagged_boxes(text: str) -> list[WrittenBox]:
    """Return the boxes and points of a text that stand between tags, or are tokens."""
    found = _of_text(text, 0, None, "", answered=True) if _may_have(text) else []
    return [box for box in found if box.form not in ("json", "list", "answer")]


def _texts(message: Mapping[str, Any]) -> Iterator[tuple[int | None, str]]:
    content = message.get("content")
    if isinstance(content, str):
        yield None, content
    elif isinstance(content, list):
        for place, part in enumerate(content):
            if part.get("type") == "text":
                yield place, part["text"]


def _may_have(text: str) -> bool:
    """Check, faster than any pattern, for what all ways of writing boxes have."""
    marks = ("[", "(", "box", "<loc", "<point", "point_2d")
    return any(mark in text for mark in marks)


def _of_text(
    text: str, message: int, part: int | None, asked: str, *, answered: bool
) -> list[WrittenBox]:
    taken: list[tuple[int, int]] = []
    made: list[WrittenBox] = []

    def take(form: str, start: int, spans: Sequence[tuple[int, int]], size: int = 4) -> None:
        if any(begin < spans[-1][1] and start < end for begin, end in taken):
            return
        taken.append((start, spans[-1][1]))
        for at in range(0, len(spans), size):
            own = list(spans[at : at + size])
            if form == "loc" or (form == "json" and text.startswith("box_2d", start)):  # y first
                own = [own[1], own[0], own[3], own[2]]
            numbers = tuple(Fraction(text[begin:end]) for begin, end in own)
            made.append(WrittenBox(message, part, form, tuple(own), numbers))

    for form, match in _matches(text):
        begin, end = match.span("value")
        spans = [number.span() for number in _NUMBERS.finditer(text, begin, end)]
        key = match["key"] if form == "json" else ""
        single = form in ("box_start", "box") or key in _ACTION_KEYS
        size = 2 if key in _POINT_KEYS or (single and len(spans) == 2) else 4
        if spans and len(spans) % size == 0:
            take(form, match.start(), spans, size)
    for form, spans in _of_tokens(text):
        take(form, spans[0][0], spans, len(spans))
    if _FOUR.search(text) and (lists := _form_of_lists(text, asked, answered)):
        for match in _FOUR.finditer(text):
            take(lists, match.start(), [match.span(each) for each in range(1, 5)])
    return sorted(made, key=lambda box: min(box.spans))


def _matches(text: str) -> Iterator[tuple[str, "re.Match[str]"]]:
    """Yield the form of a text with numbers, and its match."""
    if "box" in text or "point_2d" in text or ("coordinate" in text and "action" in text):
        for match in _KEYED.finditer(text):
            if match["key"] != "coordinate" or "action" in text:  # else of anything
                yield "json", match
    for form, (mark, pattern) in _TAGGED.items():
        if mark in text:
            yield from ((form, match) for match in pattern.finditer(text))
    if "<|begin_of_box|>" in text:
        yield from (("begin_of_box", match) for match in _OF_GLM.finditer(text))


def _of_tokens(text: str) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    if "<loc" in text:
        for form, pattern in (("loc", _LOCATIONS), ("loc_", _OF_FLORENCE)):
            for match in pattern.finditer(text):
                yield form, [each.span() for each in _NUMBERS.finditer(text, *match.span())]
    if "<point" in text:
        for match in _OF_MOLMO.finditer(text):
            end = text.find(">", match.end())
            for each in _MORE_OF_MOLMO.finditer(text, match.start(), end if end > 0 else len(text)):
                yield "point", [each.span(1), each.span(2)]


def _form_of_lists(text: str, asked: str, answered: bool) -> str | None:
    """Return the form of lists of four numbers; None where the question asks for something else."""
    if _ASKED.search(asked):
        return "list"
    if not answered or not _WHERE.search(asked):
        return None
    return "answer" if len(_FOUR.sub("", text)) <= _BESIDE_LISTS else None


@dataclass(frozen=True, slots=True)
class RowBoxes:
    """The boxes of a row, as an audit keeps them."""

    count: int
    inverted: int
    """Boxes whose second corner is not right of and below the first."""
    form: int
    """The place in `FORMS` of how the first is written."""
    fractions: bool
    """If a number of them is no whole one."""
    reach: tuple[float, float]
    """The largest x and y."""
    least: float
    """The smallest number."""
    middle: tuple[float, float]
    """The mean of their centers."""
    size: tuple[int, int]
    """Width and height of the picture; 0 where it has several of other sizes."""
    resized: tuple[int, int]
    """Width and height as the processor resizes it; 0 where they are not known."""

    def values(self) -> tuple[Any, ...]:
        """Return the values as a row of `BOX`."""
        return tuple(getattr(self, name) for name in BOX.names or ())


def row_boxes(
    row: Row,
    size_of: Callable[[Any], tuple[int, int]],
    resized: Callable[[int, int], tuple[int, int] | None],
) -> RowBoxes | None:
    """Return the facts about a row's boxes; None for a row without boxes or without pictures.

    Args:
        size_of: returns a picture's width and height, upright.
        resized: returns those that the processor makes of them.
    """
    if not row.images or not (found := find_boxes(row)):
        return None
    edges = np.array([box.edges for box in found])
    size = one_size(row, size_of)
    return RowBoxes(
        min(len(found), 65535),
        min(sum(box.inverted for box in found), 65535),
        [*FORMS].index(found[0].form),
        any(number.denominator != 1 for box in found for number in box.numbers),
        (float(edges[:, ::2].max()), float(edges[:, 1::2].max())),
        float(edges.min()),
        (float(edges[:, ::2].mean()), float(edges[:, 1::2].mean())),
        size or (0, 0),
        (size and resized(*size)) or (0, 0),
    )


def one_size(row: Row, size_of: Callable[[Any], tuple[int, int]]) -> tuple[int, int] | None:
    """Return the size that all pictures of a row have; None where they differ."""
    sizes = {size_of(picture) for picture in row.images}
    return sizes.pop() if len(sizes) == 1 else None
