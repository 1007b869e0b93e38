"""The unit of the boxes of a split: inferred from where they lie and from sizes of pictures.

Every row says something: a coordinate beyond a picture is not in its pixels, one above 1000 not in
thousandths. Where all fit, boxes that fill a smaller square than the picture's are of that square.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vtool.data.boxes import FORMS, OWN_SCALES, SCALES

UNITS = {
    "absolute": "pixels of the picture",
    "resized": "pixels of the picture as it is resized for the model",
    "thousand": "0 to 1000",
    "hundred": "0 to 100",
    "unit": "0 to 1",
}
"""The units that `data.coordinates` knows, in words."""
IN_WORDS = UNITS | {
    "loc": "0 to 1023 (<loc0000>)",
    "loc_": "0 to 999 (<loc_0>)",
    "point": "0 to 100 (<point>)",
}
_PIXELS = {"absolute", "resized"}
_SLACK = 1.02
"""Parts of a picture, or of a thousand, up to which a coordinate may have been rounded."""
_MOST_ODD = 0.05
"""The share of rows that a unit need not explain: they leave their picture."""
_FEWEST = 3
"""Rows that rule a unit out."""
_TELL = 12
"""Rows from which on the places of boxes tell a unit that no row rules out."""
_MOST_MIXED = 5000
"""Rows whose sizes are exchanged to see how many boxes fit by chance."""
_CHANCE, _FEW_PAIRS = 1e-6, 500
"""A probability that is no chance, and the rows that are compared with each other at most."""
_ALIKE = 1.05
"""Times another size up to which two are one: boxes are not told apart by it."""


@dataclass(frozen=True, slots=True)
class Told:
    """The units that the boxes of some rows may be in."""

    units: frozenset[str]
    """None of them, if all are ruled out."""
    fits: dict[str, NDArray[np.bool_]]
    """By unit, the rows whose boxes fit in it."""

    @property
    def unit(self) -> str | None:
        """The unit, where it is told: one alone, or pixels that are the same resized."""
        left = self.units - {"resized"} if "absolute" in self.units else self.units
        return next(iter(left)) if len(left) == 1 else None


def tell(boxes: NDArray[np.void]) -> Told:
    """Return the units that the boxes of rows may be in.

    Args:
        boxes: `BOX` of each row; at least one.
    """
    own = [form for form in OWN_SCALES if np.all(boxes["form"] == [*FORMS].index(form))]
    if own:
        fits = boxes["reach"].max(axis=1) <= OWN_SCALES[own[0]]
        return Told(frozenset(own), {own[0]: fits & (boxes["least"] >= 0)})
    scales = {name: _scale(boxes, name) for name in UNITS}
    fits = {name: _fits(boxes, name, scales[name]) for name in UNITS}
    units = {name for name in UNITS if not _ruled_out(fits[name])}
    known = np.all(boxes["size"] > 0, axis=1)
    if known.sum() >= _TELL:
        units -= {
            name
            for name in units
            for other in units - {name}
            if _tells(boxes[known], scales[other][known], scales[name][known])
        }
    return Told(frozenset(units), fits)


def _scale(boxes: NDArray[np.void], unit: str) -> NDArray[np.float64]:
    """Return the largest x and y of each row's picture in a unit; infinity where not known."""
    if unit in SCALES:
        return np.full((len(boxes), 2), float(SCALES[unit]))
    size = boxes["size" if unit == "absolute" else "resized"].astype(np.float64)
    return np.where(size > 0, size, np.inf)


def _fits(boxes: NDArray[np.void], unit: str, scale: NDArray[np.float64]) -> NDArray[np.bool_]:
    reach, least = boxes["reach"].astype(np.float64), boxes["least"].astype(np.float64)
    rounded = scale * (_SLACK - 1) + (unit in ("absolute", "resized"))
    within: NDArray[np.bool_] = np.all(reach <= scale + rounded, axis=1)
    within &= least >= -rounded.max(axis=1)
    # fractions up to 1 are of no other unit; whole numbers may be of any
    small = (reach.max(axis=1) <= _SLACK) & boxes["fractions"]
    return within if unit == "unit" else within & ~small


def _ruled_out(fits: NDArray[np.bool_]) -> bool:
    odd = int((~fits).sum())
    return odd >= _FEWEST and odd > _MOST_ODD * len(fits)


def _tells(boxes: NDArray[np.void], small: NDArray[np.float64], large: NDArray[np.float64]) -> bool:
    """Return whether boxes that fit in two sizes are clearly of the smaller one.

    They then fill it, and lie around its middle, while they leave the right or lower part of the
    larger one empty in every row. A healthy set of either unit is not like that in the other.
    """
    valid = np.isfinite(small).all(axis=1) & np.isfinite(large).all(axis=1)
    if valid.sum() < _TELL:
        return False
    boxes, small, large = boxes[valid], small[valid], large[valid]
    reach, middle = (boxes[name].astype(np.float64) for name in ("reach", "middle"))
    fills = np.quantile(reach / small, 0.9, axis=0)
    center, other = (middle / small).mean(axis=0), (middle / large).mean(axis=0)
    times = np.median(large / small, axis=0)
    empty = (times >= 1.35) & (other < 0.37) & (np.quantile(reach / large, 0.95, axis=0) < 0.8)
    # a row alone is weak evidence, and one large picture must not outweigh others
    gain = np.log(large / small).clip(-1.4, 1.4).sum()
    return bool(
        gain > 8
        and np.all(fills >= 0.7)
        and np.all((reach / small).max(axis=0) >= 0.9)
        and np.all(abs(center - 0.5) <= 0.15)
        and empty.any()
    )


def alike(boxes: NDArray[np.void]) -> bool:
    """Return whether pixels of the pictures and of the resized ones are the same, or nearly."""
    known = (boxes["size"] > 0).all(axis=1) & (boxes["resized"] > 0).all(axis=1)
    if not known.any():
        return True
    times = boxes["resized"][known] / boxes["size"][known]
    return float(np.quantile(abs(np.log(times)).max(axis=1), 0.75)) <= float(np.log(_ALIKE))


def second_unit(boxes: NDArray[np.void], told: Told) -> tuple[str, str, NDArray[np.bool_]] | None:
    """Return two units that rows of a set are in, and which rows the second alone explains.

    None where one unit explains them, or where what it does not explain fits in no other.
    """
    by_rows = sorted(told.fits, key=lambda name: -int(told.fits[name].sum()))
    first = told.unit if told.unit in told.fits else by_rows[0]
    rest = ~told.fits[first]
    for second in by_rows:
        only = rest & told.fits[second]
        if second == first or {first, second} == {"absolute", "resized"}:
            continue
        back = told.fits[first] & ~told.fits[second]
        exact = "unit" in (first, second)  # a single row shows it
        enough = 1 if exact else max(_FEWEST, _MOST_ODD * len(boxes))
        few = 1 if exact else _FEWEST
        if only.sum() >= enough and back.sum() >= few and only.sum() >= 0.8 * rest.sum():
            return first, second, only
    return _one_after_the_other(boxes, told) or _fitting_by_size(boxes, told)


def _one_after_the_other(
    boxes: NDArray[np.void], told: Told
) -> tuple[str, str, NDArray[np.bool_]] | None:
    """Return two units, where the rows at one end of a file are clearly of another than the rest.

    So is a file that another one was appended to.
    """
    count = len(boxes)
    for name in ("absolute", "resized", "thousand"):
        if name not in told.fits or told.fits[name].all():
            continue
        odd = np.flatnonzero(~told.fits[name])
        for chosen in (np.arange(count) < odd[0], np.arange(count) > odd[-1]):
            if min(chosen.sum(), count - chosen.sum()) < _TELL:
                continue
            here, there = tell(boxes[chosen]), tell(boxes[~chosen])
            apart = not here.units & there.units and here.units | there.units != _PIXELS
            if apart and here.unit and there.unit:
                return there.unit, here.unit, chosen
            of_pixels = name == "absolute" and "thousand" in told.units
            if of_pixels and _by_chance(boxes, chosen) < _CHANCE:
                return "thousand", name, chosen
    return None


def _by_chance(boxes: NDArray[np.void], chosen: NDArray[np.bool_]) -> float:
    """Return how probable it is that boxes all fit in their pictures, were they as the others are.

    The others' boxes are tried in the pictures of the chosen ones.
    """
    reach = boxes["reach"][~chosen][:_FEW_PAIRS].astype(np.float64)
    size = boxes["size"][chosen][:_FEW_PAIRS].astype(np.float64)
    if not (size > 0).all():
        return 1.0
    fits = np.all(reach[:, None] <= size[None] * _SLACK + 1, axis=2)
    return float(fits.mean() ** chosen.sum())


def _fitting_by_size(
    boxes: NDArray[np.void], told: Told
) -> tuple[str, str, NDArray[np.bool_]] | None:
    """Return thousandths and pixels, where many more boxes fit in their picture than by chance.

    All fit in a thousand here. Were all of them thousandths, the picture of another row would have
    room for as many as the row's own.
    """
    if "absolute" not in told.fits:
        return None
    fits, size = told.fits["absolute"], boxes["size"].astype(np.float64)
    if (
        len(boxes) < 16
        or told.units != {"thousand"}
        or not (size > 0).all()
        or not 0.1 <= fits.mean() <= 1 - _MOST_ODD
    ):
        return None
    few = np.linspace(0, len(boxes) - 1, min(len(boxes), _MOST_MIXED)).astype(int)
    random, reach = np.random.default_rng(0), boxes["reach"][few].astype(np.float64)
    size = size[few]
    shares = np.array(
        [
            np.all(reach <= size[random.permutation(len(size))] * _SLACK + 1, axis=1).mean()
            for _ in range(200)
        ]
    )
    excess = fits[few].mean() - shares.mean()
    if excess < 0.2 or excess < 6 * max(shares.std(), 1e-9):
        return None
    return "thousand", "absolute", fits


def groups_of(
    boxes: NDArray[np.void], sources: NDArray[np.int64]
) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
    """Yield the rows of each source and way of writing boxes, which may be of one unit each."""
    keys = sources.astype(np.int64) * len(FORMS) + boxes["form"]
    for key in np.unique(keys).tolist():
        yield key // len(FORMS), key % len(FORMS), keys == key
