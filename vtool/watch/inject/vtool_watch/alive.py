"""Finds live objects other than the model: loss scalers, data loaders, settings of a trainer."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

_COUNTS = ("last_epoch", "last_batch_iteration", "num_steps")
"""Names for the steps of a schedule: torch's, DeepSpeed's, Megatron-core's."""
_ROWS = 64
"""Rows of a data set that are looked at."""
_MOST, _BYTES = 4096, 8 << 20
"""Rows and bytes of a data set that are looked at whole."""
_LENGTHS_OF_TEXTS = re.compile(r"(packed_)?(seq|sequence)s?_?(len|length)s?")
"""Columns of the lengths of packed texts: turns, words and images have lengths too."""


def loss_scale(optimizer: Any) -> float:
    """Return the factor of a GradScaler on the loss, by which the step divides gradients."""
    for each in _scalers():
        if id(optimizer) in each._per_optimizer_states:
            return float(each.get_scale())
    return 1.0


def _scalers() -> list[torch.amp.GradScaler]:
    """Return the loss scalers alive that are switched on."""
    return [
        each
        for each in gc.get_objects()
        if type(each).__name__.endswith("GradScaler")
        and isinstance(each, torch.amp.GradScaler)
        and each.is_enabled()
    ]


def scales() -> list[float]:
    """Return the factors of the loss scalers alive."""
    return [float(each.get_scale()) for each in _scalers()]


def is_accumulating() -> bool | None:
    """Return whether accelerate holds this step for the middle of an accumulation.

    Its own optimizers leave out such a step; one that was not prepared makes it. None where
    accelerate is not used.
    """
    kind = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    state = getattr(kind, "_shared_state", None)
    if not isinstance(state, dict) or "sync_gradients" not in state:
        return None
    return state["sync_gradients"] is False


def as_steps(schedule: Any) -> int | None:
    """Return how often a schedule was stepped; None for what is no schedule."""
    counts = (getattr(schedule, name, None) for name in _COUNTS)
    return next((count for count in counts if isinstance(count, int)), None)


def schedule_of(optimizer: Any) -> Any:
    """Return the schedule of an optimizer's rate; None without one.

    Where schedules hold others, the outermost was stepped most.
    """
    groups, found = optimizer.param_groups, []
    for each in gc.get_objects():
        try:
            if "lr_scheduler" not in type(each).__module__ and not hasattr(type(each), "get_lr"):
                continue
            theirs = getattr(getattr(each, "optimizer", None), "param_groups", None)
            steps = as_steps(each)
            same = theirs is groups or (theirs and groups and theirs[0] is groups[0])
            if same and steps is not None:
                found.append((steps, type(each).__name__, each))
        except Exception:  # a half-built one, a proxy
            continue
    return max(found, key=lambda one: one[:2])[2] if found else None


def trainer_facts() -> dict[str, Any]:
    """Return the facts about the data loaders, and the settings that the trainer was given."""
    return {"data": loaders(), "asks": _asks()}


def _asks() -> str | None:
    """Return the setting by which a trainer of TRL is to learn answers alone, if it has one."""
    kind = getattr(sys.modules.get("trl.trainer.sft_config"), "SFTConfig", None)
    if kind is None:
        return None
    for each in gc.get_objects():
        if issubclass(type(each), kind):
            for name in ("assistant_only_loss", "completion_only_loss"):
                if getattr(each, name, None) is True:
                    return name
    return None


def loaders() -> list[dict[str, Any]]:
    """Return the live data loaders, also those of which only the iterator is left."""
    found: list[dict[str, Any]] = []
    loops: list[dict[str, Any]] = []
    for each in gc.get_objects():
        try:
            kind = type(each).__name__
            if "DataLoader" not in kind or not hasattr(type(each), "__iter__"):
                continue
            if hasattr(each, "dataset"):
                found.append(_loader(kind, each.dataset, each))
            elif isinstance(getattr(each, "_sampler_iter", None), Iterator):
                loops.append(_loader(kind, each._dataset, each._index_sampler))
        except Exception:  # a half-built one, a proxy
            continue
    return (found or loops)[:8]


def _loader(kind: str, data: Any, settings: Any) -> dict[str, Any]:
    """Return the facts about a loader, from itself or from its sampler of batches."""
    return {
        "loader": kind,
        "dataset": type(data).__name__,
        "rows": len(data) if hasattr(data, "__len__") else None,
        "batch": getattr(settings, "batch_size", None),
        "sampler": type(getattr(settings, "sampler", None)).__name__,
        "shuffled": _is_shuffled(settings),
        "drop_last": getattr(settings, "drop_last", None),
        "workers": getattr(settings, "num_workers", None),
        "packed": _texts_of_a_row(data),
        "copies": _copies(data),
    }


def _copies(data: Any) -> int | None:
    """Return how many rows of a small data set are copies of others, by their ids.

    None where it is too large, or where its own code would have to be run.
    """
    rows: list[Any]
    if type(data) is list:
        rows = [row.get("input_ids") if isinstance(row, dict) else None for row in data[:_MOST]]
    elif _has_table(data) and len(data) <= _MOST and data.data.nbytes <= _BYTES:
        rows = data.data.column("input_ids").to_pylist()
    else:
        return None
    if len(rows) < len(data) or not all(isinstance(row, list) for row in rows):
        return None
    if sum(map(len, rows)) > _BYTES // 8:
        return None
    return len(rows) - len(set(map(tuple, rows)))


def _has_table(data: Any) -> bool:
    """Return whether a data set is a table of ids, and its rows are those of the table."""
    names = getattr(data, "column_names", None)
    indices = getattr(data, "_indices", None)
    table = hasattr(data, "__len__") and hasattr(getattr(data, "data", None), "nbytes")
    return table and isinstance(names, list) and "input_ids" in names and indices is None


def _texts_of_a_row(data: Any) -> int | None:
    """Return how many texts a row holds at most, where a column of its table has their lengths.

    The first rows are looked at, and in the table: what the data set makes of them is not run.
    """
    names = getattr(data, "column_names", None)
    if not isinstance(names, list) or "input_ids" not in names:
        return None
    first = data.data.slice(0, _ROWS)
    sizes = [len(ids) for ids in first.column("input_ids").to_pylist()]
    for name in names:
        if not _LENGTHS_OF_TEXTS.fullmatch(name):
            continue
        lengths = first.column(name).to_pylist()
        if all(isinstance(of, list) for of in lengths) and [sum(of) for of in lengths] == sizes:
            return max(map(len, lengths), default=0)
    return None


def _is_shuffled(settings: Any) -> bool:
    """Return whether rows are drawn in a new order each epoch, by the innermost sampler's kind."""
    sampler, batches = getattr(settings, "sampler", None), settings
    for _ in range(4):  # samplers of batches wrap each other, and torch names another one outside
        batches = getattr(batches, "batch_sampler", None)
        if batches is None:
            break
        sampler = getattr(batches, "sampler", sampler)
    if hasattr(sampler, "set_epoch"):
        return getattr(sampler, "shuffle", True) is True
    name = type(sampler).__name__
    return "RandomSampler" in name and "Weighted" not in name
