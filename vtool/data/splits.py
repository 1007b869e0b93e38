"""Rows that are held back from training: the side of a row is a hash of its group.

A group is what a row is about: the content of its first picture or video, of a row without its
first question, or the value of a key that the recipe names. Each held-back split has a hash of its
own, and the test split is decided first. So a row's side depends on its group and the fractions
alone: rows that are added move none, and another fraction of one split moves rows only between that
split and the others.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import xxhash
from numpy.typing import NDArray

from vtool.config.schema import Data, Split
from vtool.data.permutation import mix
from vtool.data.row_audits import RowAudits
from vtool.diagnostics import Diagnostic


def held_back(groups: NDArray[np.uint64], split: str, share: float) -> NDArray[np.bool_]:
    """Return which groups a split's own hash holds back. A larger share has a smaller one's."""
    salt = np.uint64(xxhash.xxh3_64_intdigest(split.encode()))
    bound = np.uint64(int(Fraction(str(share)) * 2**64))
    held: NDArray[np.bool_] = mix(groups ^ salt) < bound
    return held


def divide(settings: Split, audits: RowAudits) -> dict[str, RowAudits]:
    """Divide the audits of all rows among the splits.

    A row that cannot be used is on no side; it is counted with the training split.
    """
    if not settings.shares:
        return {"train": audits}
    rest, usable = np.ones(len(audits), bool), audits.table["usable"]
    sides: dict[str, NDArray[np.bool_]] = {}
    for split, share in settings.shares.items():
        sides[split] = rest & usable & held_back(audits.table["group"], split, share)
        rest &= ~sides[split]
    # which of them were audited before is known where all were
    all_reused = audits.reused == int(usable.sum())
    return {
        split: replace(audits.where(side), reused=int((side & usable).sum()) * all_reused)
        for split, side in {"train": rest, **dict(sorted(sides.items(), reverse=True))}.items()
    }


def empty_sides(settings: Data, parts: Mapping[str, RowAudits]) -> list[Diagnostic]:
    """Return a finding for each side of a split that has no row, and there are rows to use."""
    if not parts:
        return []
    usable = np.concatenate([part.usable["group"] for part in parts.values()])
    groups = len(np.unique(usable))
    shares = settings.split.shares
    found = []
    for split, part in parts.items():
        if len(part.usable) or not groups:
            continue
        name = f"data.split.{split}" if split in shares else "data.split"
        given = f"{name}={shares[split]:g}" if split in shares else name
        many = f"{len(usable):,} rows in {groups:,} group{'s' * (groups > 1)}"
        message = f"{given} leaves data.{split} no row: there are {many}"
        help = (
            "name a key that tells more rows apart: data.split.group=KEY"
            if groups < min(20, len(usable))
            else f"raise {name}, or give data.{split} rows of its own"
            if split in shares
            else "lower the fractions of data.split"
        )
        found.append(Diagnostic("no-rows", message, help, name))
    return found


def splits_in_words(settings: Split, parts: Mapping[str, RowAudits]) -> dict[str, str]:
    """Return, for each split that is held back, how many rows and groups that are."""
    rows = sum(len(part.usable) for part in parts.values())
    described = {}
    for split, share in settings.shares.items():
        held = parts[split].usable
        groups = len(np.unique(held["group"]))
        described[split] = (
            f"{len(held):,} of {rows:,} rows held back ({len(held) / max(1, rows):.1%};"
            f" data.split.{split}={share:g} of the groups), in {groups:,} groups"
        )
    return described
