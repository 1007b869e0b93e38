"""`model.gradient_checkpointing: auto`: the fewest blocks that compute again and fit in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from vtool.config.schema import Run
from vtool.families.family import load_family

MOST_MEASURED = 10
"""The plans that a search makes at most: after them, it takes the fewest that is known to fit."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The blocks that `auto` lets compute again."""

    blocks: int
    of: int
    tower: int
    """Blocks of the vision tower, which come first."""
    without: int | None
    """Bytes of a rank's device where no block computes again; None: no memory was named."""

    @property
    def setting(self) -> int | str:
        """The value of `model.gradient_checkpointing` that means it."""
        return as_setting(self.blocks, self.of)


def as_setting(blocks: int, of: int) -> int | str:
    """Return a number of blocks as `model.gradient_checkpointing` has it."""
    return "none" if blocks == 0 else "full" if blocks == of else blocks


def with_blocks(run: Run, blocks: int, of: int) -> Run:
    """Return a run in which the first so many blocks compute again."""
    update = {"gradient_checkpointing": as_setting(blocks, of)}
    return run.model_copy(update={"model": run.model.model_copy(update=update)})


def count_blocks(run: Run, module: Any) -> tuple[int, int]:
    """Return a model's blocks that can compute again, and those of them in the tower."""
    blocks = load_family(run.model.family).recomputable(module)
    inside = {id(part) for part in module.model.visual.modules()}
    return len(blocks), sum(id(block) in inside for block in blocks)


def fewest_blocks(measure: Callable[[int], float], tower: int, of: int, room: float) -> int | None:
    """Return the fewest of the first blocks whose recomputing makes it fit.

    Blocks of one kind keep equally much, so between two numbers that were measured the next one is
    where a line between them meets the room. What is returned has been measured, and fits.

    Args:
        measure: the bytes, where so many compute again.
        tower: the first blocks, of a kind of their own.
        of: all blocks.
        room: bytes.

    Returns:
        None where it does not fit even if all do.
    """
    sizes = {0: measure(0)}
    if sizes[0] <= room:
        return 0
    sizes[of] = measure(of)
    if sizes[of] > room:
        return None
    low, high, following, halve = 0, of, tower, False
    while high - low > 1 and len(sizes) < MOST_MEASURED:
        if not low < following < high:
            share = (sizes[low] - room) / max(sizes[low] - sizes[high], 1)
            on_line = low + ceil(share * (high - low))
            following = (low + high) // 2 if halve else min(max(on_line, low + 1), high - 1)
        sizes[following] = measure(following)
        low, high = (low, following) if sizes[following] <= room else (following, high)
        # a last block that keeps more than the others would bend the line at every turn
        following, halve = 0, not halve and len(sizes) > 4
    return high
