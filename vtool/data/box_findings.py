"""Findings about the boxes and points of a split: their unit, their order, their place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtool.data.box_conventions import IN_WORDS, UNITS, Told, alike, groups_of, second_unit, tell
from vtool.data.boxes import FORMS
from vtool.data.loader import EncodedRows
from vtool.data.sources import Rows
from vtool.diagnostics import Diagnostic
from vtool.words import plural

_FORMS = tuple(FORMS)
_NO_BOXES = 0.2
"""The share of boxes whose corners are in no order, from which on lists of numbers are none."""
_PIXELS = frozenset(("absolute", "resized"))
BOX_RULES = (
    "boxes-of-another-convention",
    "boxes-mix-conventions",
    "boxes-leave-picture",
    "boxes-inverted",
)


@dataclass(frozen=True, slots=True)
class BoxSummary:
    """The boxes of a split, and what is found about them."""

    rows: int = 0
    boxes: int = 0
    unit: str | None = None
    """The unit that they are in; None where the rows do not tell."""
    expected: str | None = None
    """The unit of `data.coordinates.to`, else of the family; None where neither is known."""
    forms: tuple[str, ...] = ()
    findings: tuple[Diagnostic, ...] = ()

    def in_words(self) -> str:
        """Return their number and unit, for a line."""
        unit = f" in {IN_WORDS[self.unit]}" if self.unit else ""
        return f"{plural(self.boxes, 'box or point', 'boxes and points')}{unit}"

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as data.json has it."""
        return {
            "rows": self.rows,
            "boxes": self.boxes,
            "written_as": list(self.forms),
            "unit": self.unit,
            "expected": self.expected,
        }

    def unlooked(self) -> dict[str, str]:
        """Return the rules that could not be looked at, and why."""
        if self.rows and self.unit is None and not self.findings:
            return {BOX_RULES[0]: "these rows do not tell what their boxes are in"}
        if self.rows and self.expected is None:
            return {BOX_RULES[0]: "no model is named that boxes are compared with"}
        return {}


def summarize_boxes(split: str, rows: EncodedRows, kept: NDArray[np.void]) -> BoxSummary:
    """Return the boxes of a split's usable rows, and the findings about them.

    Args:
        kept: the table of the usable rows.
    """
    table = _with_boxes(kept)
    if not len(table):
        return BoxSummary()
    boxes, settings = table["boxes"], rows.settings.coordinates
    expected = settings.to if settings else rows.processor.coordinates
    split_of = _Split(split, rows.rows, table, expected, bool(settings))
    told = tell(boxes)
    forms = tuple(FORMS[_FORMS[form]] for form in np.unique(boxes["form"]).tolist())
    return BoxSummary(
        len(table),
        int(boxes["count"].sum(dtype=np.int64)),
        "resized" if expected == "resized" and _accepts(expected, told, boxes) else told.unit,
        expected,
        forms,
        tuple(split_of.findings(told)),
    )


def _with_boxes(kept: NDArray[np.void]) -> NDArray[np.void]:
    """Return the rows that have boxes; answers of four numbers in no order have none."""
    table = kept[kept["boxes"]["count"] > 0]
    bare = table["boxes"]["form"] == _FORMS.index("answer")
    if not bare.any():
        return table
    of_them = table["boxes"][bare]
    odd = of_them["inverted"].sum(dtype=np.int64) > _NO_BOXES * of_them["count"].sum(dtype=np.int64)
    return table[~bare] if odd else table


def _accepts(expected: str | None, told: Told, boxes: NDArray[np.void]) -> bool:
    """Return whether boxes may be in the expected unit."""
    if expected in told.units:
        return True
    return expected in _PIXELS and bool(told.units & _PIXELS) and alike(boxes)


@dataclass(frozen=True, slots=True)
class _Split:
    name: str
    rows: Rows
    table: NDArray[np.void]
    expected: str | None
    by_setting: bool

    def findings(self, told: Told) -> Iterator[Diagnostic]:
        boxes = self.table["boxes"]
        mixed = list(self._mixed(told))
        yield from mixed
        fits = self.expected is None or _accepts(self.expected, told, boxes)
        if not mixed and told.units and not fits:
            yield self._of_another(told)
        yield from self._leaving(told, bool(mixed))
        yield from self._inverted()

    def _mixed(self, told: Told) -> Iterator[Diagnostic]:
        boxes = self.table["boxes"]
        sources = self.rows.sources_of(self.table["index"])
        parts: list[tuple[str, NDArray[np.bool_], int, int]] = []
        for source, form, chosen in groups_of(boxes, sources):
            own = tell(boxes[chosen])
            if pair := second_unit(boxes[chosen], own):
                at = np.flatnonzero(chosen)
                only = np.zeros(len(boxes), bool)
                only[at[pair[2]]] = True
                yield self._mix([(pair[0], chosen & ~only), (pair[1], only)])
                return
            if own.unit:
                parts.append((own.unit, chosen, source, form))
        apart = {unit for unit, *_ in parts}
        if len(apart) > 1 and not (apart <= _PIXELS):
            units = sorted(apart, key=lambda unit: -sum(p[1].sum() for p in parts if p[0] == unit))
            yield self._mix(
                [
                    (unit, np.any([chosen for name, chosen, *_ in parts if name == unit], axis=0))
                    for unit in units
                ]
            )

    def _mix(self, parts: Sequence[tuple[str, NDArray[np.bool_]]]) -> Diagnostic:
        named = "; ".join(
            f"{int(chosen.sum()):,} in {IN_WORDS[unit]} ({self._first(chosen)})"
            for unit, chosen in parts
        )
        return self._finding(
            "boxes-mix-conventions",
            f"{self._counted()} are in several units: {named}",
            "write all boxes in one unit, or make a source of each and rescale the others first",
        )

    def _of_another(self, told: Told) -> Diagnostic:
        assert self.expected is not None
        boxes = self.table["boxes"]
        every = np.ones(len(boxes), bool)
        same = told.units >= _PIXELS and alike(boxes)
        units = sorted(told.units - {"resized"} if same else told.units, key=[*IN_WORDS].index)
        seen = " or ".join(IN_WORDS[unit] for unit in units)
        wants = "data.coordinates.to says" if self.by_setting else "this model has learnt"
        place = int(boxes["reach"].max(axis=1).argmax())
        help = f"data.coordinates={{from: {units[0]}, to: {self.expected}}} rescales them"
        if len(units) > 1:
            help = f"data.coordinates={{from: UNIT, to: {self.expected}}} rescales them"
        if self.by_setting:
            help = "look at data.coordinates.from: the boxes of the file are in another unit"
        elif units[0] not in UNITS:
            help = "write them as this model does"
        return self._finding(
            "boxes-of-another-convention",
            f"{self._counted()} are in {seen} ({self._example(place)};"
            f" {self._first(every)}); {wants} {IN_WORDS[self.expected]}",
            help,
        )

    def _leaving(self, told: Told, mixed: bool) -> Iterator[Diagnostic]:
        boxes = self.table["boxes"]
        units: set[str] = set(told.fits)
        if not mixed and self.expected is not None and _accepts(self.expected, told, boxes):
            same = self.expected in _PIXELS and alike(boxes)
            units = set(_PIXELS) if same else {self.expected}
        elif not mixed and told.units:
            units = set(told.units)
        beyond = ~np.any([told.fits[unit] for unit in units], axis=0)
        if not beyond.any():
            return
        place = int(np.flatnonzero(beyond)[0])
        help = "look at these rows on the page of vtool verify --html, which draws their boxes"
        others = {unit: int((beyond & fits).sum()) for unit, fits in told.fits.items()}
        if others and max(others.values()):
            unit = max(others, key=lambda name: others[name])
            help = f"{others[unit]:,} of them would lie within it in {IN_WORDS[unit]}: {help}"
        yield self._finding(
            "boxes-leave-picture",
            f"{self._counted()} leave their picture in {int(beyond.sum()):,}"
            f" ({self._first(beyond)}): {self._example(place)}",
            help,
        )

    def _inverted(self) -> Iterator[Diagnostic]:
        boxes = self.table["boxes"]
        chosen = boxes["inverted"] > 0
        if not chosen.any():
            return
        count, of = (int(boxes[name].sum(dtype=np.int64)) for name in ("inverted", "count"))
        help = "write x1 < x2 and y1 < y2, or remove the box"
        if count > _NO_BOXES * of:
            help = "they may be [x, y, width, height], or y first: write [x1, y1, x2, y2]"
        yield self._finding(
            "boxes-inverted",
            f"data.{self.name}: of {of:,} boxes and points, {count:,} in {int(chosen.sum()):,} rows"
            f" have x2 ≤ x1 or y2 ≤ y1 ({self._first(chosen)})",
            help,
        )

    def _counted(self) -> str:
        return f"data.{self.name}: the boxes and points of {len(self.table):,} rows"

    def _finding(self, rule: str, message: str, help: str) -> Diagnostic:
        return Diagnostic(rule, message, help, parameter=f"data.{self.name}")

    def _first(self, chosen: NDArray[np.bool_]) -> str:
        at = self.table["index"][chosen]
        named = [self.rows.name(int(index)) for index in at[:3]]
        return ", ".join(named) + (", …" if len(at) > 3 else "")

    def _example(self, place: int) -> str:
        one = self.table["boxes"][place]
        x, y = (f"{float(value):g}" for value in one["reach"])
        width, height = one["size"].tolist()
        size = f"a picture of {width} × {height}" if width else "its pictures"
        least = f", and down to {float(one['least']):g}" if one["least"] < 0 else ""
        return (
            f"{self.rows.name(int(self.table['index'][place]))} goes up to x {x}, y {y}{least} in"
            f" {size}"
        )
