"""The learning rate of adapters, where a recipe has only a shipped one for all weights."""

from dataclasses import replace
from pathlib import Path

from vtool.config.origins import Origins, ValuePosition
from vtool.config.resources import opened
from vtool.config.schema import Run
from vtool.config.schema.base import NotValid
from vtool.diagnostics import Origin

RATE = 1e-4
"""The rate of the shipped recipes that train adapters on a model that has learnt something."""
_NAME = ("optim", "lr")
_HERE = Origin("the default of adapters (lora)")


def with_rate_of_adapters(run: Run, origins: Origins) -> tuple[Run, Origins]:
    """Return a run whose optim.lr is that of adapters, where a shipped recipe's is for all weights.

    A rate that the user chose, in a file or on the command line, is left as it is; so is that of a
    shipped recipe which has adapters itself.
    """
    try:
        if run.lora is None or run.model.starts_from == "random" or run.optim.lr == RATE:
            return run, origins
    except NotValid:
        return run, origins
    chosen = origins.of(".".join(_NAME))
    if chosen is None or opened(chosen.file) == Path(chosen.file):
        return run, origins
    of_lora = {place.value.file for keys, place in origins.places.items() if keys[0] == "lora"}
    if chosen.file in of_lora:
        return run, origins
    made = run.model_copy(update={"optim": run.optim.model_copy(update={"lr": RATE})})
    place = ValuePosition(_HERE, _HERE, "value")
    return made, replace(origins, places={**origins.places, _NAME: place})


def chosen_rate(origins: Origins) -> str | None:
    """Say that the rate is that of adapters, where nobody has set one."""
    if origins.of(".".join(_NAME)) is not _HERE:
        return None
    return f"optim.lr is {RATE:g}, for adapters (lora): the recipe's own is for all weights"
