"""The family of a model's folder, in the place of the one that a shipped recipe begins with."""

from dataclasses import replace
from pathlib import Path

from vtool.config.origins import Origins, ValuePosition
from vtool.config.resources import opened
from vtool.config.schema import Run
from vtool.config.schema.base import NotValid
from vtool.diagnostics import Origin
from vtool.families import can_train
from vtool.model_folder import MODEL_CONFIG, ModelFolder

_NAME = ("model", "family")


def with_family_of_folder(run: Run, origins: Origins) -> tuple[Run, Origins]:
    """Return a run whose model.family is what the config.json of model.path says.

    A family that the user chose, in a file or on the command line, is left as it is: where it is
    another one, a rule refuses it.
    """
    try:
        path, family = run.model.path, run.model.family
    except NotValid:
        return run, origins
    chosen = origins.of(".".join(_NAME))
    shipped = chosen is None or opened(chosen.file) != Path(chosen.file)
    if path is None or not shipped:
        return run, origins
    found = ModelFolder(Path(path)).model_type
    if found is None or not can_train(found) or found == family:
        return run, origins
    made = run.model_copy(update={"model": run.model.model_copy(update={"family": found})})
    there = Origin(str(Path(path) / MODEL_CONFIG))
    place = ValuePosition(there, there, "value")
    return made, replace(origins, places={**origins.places, _NAME: place})
