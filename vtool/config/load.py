"""`load_run`: from a recipe and its overrides to a validated, frozen run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from vtool.config.compose import Composed, compose_recipe
from vtool.config.marks import Key
from vtool.config.rules import check
from vtool.config.schema import Run
from vtool.config.validate import origin_of, validate
from vtool.diagnostics import Diagnostic, Findings, Origin


@dataclass(frozen=True, slots=True)
class Loaded:
    """A recipe that can be run."""

    run: Run
    plain: dict[str, Any]
    """Every setting, defaults included, as plain values."""
    origins: Mapping[Key, Origin]
    """Where each value comes from; defaults have no entry."""
    notes: tuple[Diagnostic, ...]
    """Findings that do not stand against running it."""


def load_run(recipe: str, overrides: Sequence[str] = ()) -> Loaded:
    """Compose, validate and cross-check a recipe.

    Raises:
        Findings: all that stands against it, at once; `fatal` where it could not be read at all.
    """
    composed = compose_recipe(recipe, overrides)
    named = composed.values.get("run") or {}
    if isinstance(named, dict):  # anything else is for the schema to refuse
        named = {"name": composed.name, **named}
    run = validate(Composed(composed.name, {**composed.values, "run": named}, composed.origins))
    findings = tuple(check(run, lambda dotted: origin_of(composed.origins, tuple(dotted.split(".")))))
    if any(finding.severity == "error" for finding in findings):
        raise Findings(findings)
    return Loaded(run, run.model_dump(mode="json"), composed.origins, findings)


def effective_yaml(loaded: Loaded) -> str:
    """Every setting in force, as a recipe that can be run again, each line with where its value comes from."""
    head = "# The settings in force, and where each one comes from. This file is a recipe: vtool train sft THIS-FILE\n"
    return head + "".join(_lines(loaded.plain, (), loaded.origins))


def _lines(values: Mapping[str, Any], keys: Key, origins: Mapping[Key, Origin]) -> list[str]:
    lines = []
    for key, value in values.items():
        place = (*keys, key)
        indent = "  " * len(keys)
        if isinstance(value, dict):
            lines += [f"{indent}{key}:\n", *_lines(value, place, origins)]
        else:
            origin = origins.get(place)
            lines.append(f"{indent}{key}: {_flow(value)}  # {origin or 'default'}\n")
    return lines


def _flow(value: Any) -> str:
    """A value in one line. yaml's own writer, since YAML reads 1e-08 as text, and 1.0e-08 as a number."""
    return yaml.safe_dump([value], default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False).strip()[1:-1]
