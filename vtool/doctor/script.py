"""The settings with which a package is used: those of a recipe, or of another trainer's file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from vtool.config.foreign import hf_script
from vtool.config.foreign.given import read_given
from vtool.config.foreign.trainers import TRAINERS
from vtool.config.yaml_positions import read_yaml
from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.doctor.advisories import Trainer
from vtool.doctor.recipe import Needs


@dataclass(frozen=True, slots=True)
class Script:
    """The settings of a file, by dotted names."""

    trainer: Trainer
    settings: Mapping[str, Any]
    places: Mapping[str, Origin] = field(default_factory=dict)
    known: bool = True
    """False for a file of another of that trainer's programs, whose settings are not those that
    advisories name."""


def read_recipe_or_script(trainer: Trainer, path: Path) -> Script:
    """Read a file of another trainer: YAML, or the script that starts it.

    Raises:
        Findings: `unreadable-file`, `bad-yaml`, fatal.
    """
    if not path.is_file():
        raise Findings(
            Diagnostic("unreadable-file", f"`{path}` is not a file", f"give a file of {trainer}"),
            fatal=True,
        )
    if trainer in TRAINERS and path.suffix not in (".yaml", ".yml", ".json"):
        given, places, *_ = hf_script.read_script(path, TRAINERS[trainer])
    else:
        given, places = read_given(read_yaml(path))
    known = trainer != "verl" or not any(name.startswith("actor_rollout_ref.") for name in given)
    return Script(
        trainer, given, {name: place.value for name, place in places.items()}, known=known
    )


def script_of(needs: Needs) -> Script:
    """Return the settings of a recipe of vtool's."""
    settings = needs.run or needs.load_check
    # as it is, where a part of it has findings
    plain = BaseModel.model_dump(settings, mode="json") if settings is not None else {}
    return Script("vtool", dict(_flat(plain, "")))


def _flat(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{above}.{key}" if above else key
        if isinstance(value, dict) and value:
            yield from _flat(value, name)
        else:
            yield name, value
