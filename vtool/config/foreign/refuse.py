"""A recipe of another trainer in the place of one of vtool's: it is named, and what reads it."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import yaml

from vtool.config.foreign.trainers import TRAINERS
from vtool.config.foreign.whose import lead, trainer_of
from vtool.config.given_for_recipe import started_by
from vtool.config.limits import MOST_BYTES
from vtool.contents import open_regular
from vtool.diagnostics import Diagnostic, Findings, Origin

_CLEARLY = 3
"""Settings more that another trainer must know: one is a mistake in a recipe."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# what PyYAML raises of values that are not what their tags say
_UNREADABLE = (
    yaml.YAMLError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
)


def refuse_foreign(recipe: str, text: str) -> None:
    """Refuse the recipe of another trainer, in the place of a finding for each of its settings.

    Args:
        text: what is in the file, as YAML.

    Raises:
        Findings: `recipe-of-another-trainer`, fatal.
    """
    try:
        values = yaml.load(text, _LOADER)
    except _UNREADABLE:  # for others to say
        return
    name = trainer_of(values) if isinstance(values, Mapping) else None
    if name is None:
        return
    given, title = shlex.quote(recipe), _title(name)
    help = f"vtool validate-config --from {name} {given} checks it; with --convert, it prints"
    help += " it as a recipe of vtool"
    message = f"`{recipe}` is a recipe of {title}, and not of vtool"
    raise Findings(
        Diagnostic("recipe-of-another-trainer", message, help, origin=Origin(recipe)), fatal=True
    )


def refuse_another(path: Path, trainer: str) -> None:
    """Refuse a recipe of another trainer than the one that it is read as.

    Raises:
        Findings: `recipe-of-another-trainer`, fatal.
    """
    if path.suffix in (".yaml", ".yml", ".json"):
        try:
            with open_regular(path) as file:
                values = yaml.load(file.read(MOST_BYTES), _LOADER)
        except (OSError, *_UNREADABLE):
            return
        name = trainer_of(values) if isinstance(values, Mapping) else None
        if name and "verl" not in (name, trainer) and lead(values, name, trainer) < _CLEARLY:
            return
    else:
        name = started_by(path)
    if name in (None, trainer):
        return
    message = f"`{path}` is a recipe of {_title(str(name))}, and not of {_title(trainer)}"
    help = f"vtool validate-config --from {name} {shlex.quote(str(path))}"
    raise Findings(
        Diagnostic("recipe-of-another-trainer", message, help, origin=Origin(str(path))), fatal=True
    )


def _title(name: str) -> str:
    return TRAINERS[name].title if name in TRAINERS else name
