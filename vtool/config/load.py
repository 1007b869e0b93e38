"""`load_run`: from a recipe and `KEY=VALUE` to a frozen, validated run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vtool.config.compose import Composed, compose_recipe
from vtool.config.effective import as_yaml
from vtool.config.origins import Origins
from vtool.config.rules import RULES, check
from vtool.config.schema import Run
from vtool.config.validate import validate
from vtool.diagnostics import RULES as TABLE
from vtool.diagnostics import Diagnostic, Findings

# launch-conflict is about the processes that torchrun has started, and is asked where they are.
ASKED = tuple(name for name, rule in TABLE.items() if rule.code < "VT3" and name != "launch-conflict")
"""The rules that a recipe is checked against."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A recipe that can be run."""

    run: Run
    plain: dict[str, Any]
    """Every setting in force, defaults included, as plain values."""
    origins: Origins
    notes: tuple[Diagnostic, ...] = ()
    """Findings that do not stand against running it."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What the checks say of a recipe, whether or not it can be run."""

    loaded: Loaded | None
    findings: tuple[Diagnostic, ...]
    checks: Mapping[str, str]
    """For each rule of `ASKED`: `passed`, `failed` or `not-run`."""


def load_run(recipe: str, overrides: Sequence[str] = ()) -> Loaded:
    """Compose, validate and cross-check a recipe: a shipped one by its name, or any YAML file by its path.

    Raises:
        Findings: all that stands against it, at once; `fatal` where it could not be read.
    """
    examined = examine(recipe, overrides)
    if examined.loaded is None:
        raise Findings(examined.findings)
    return examined.loaded


def examine(recipe: str, overrides: Sequence[str] = ()) -> Examined:
    """The same, without raising for what can be told of a recipe that was read.

    Raises:
        Findings: `fatal`, where it could not be read.
    """
    composed = _named(compose_recipe(recipe, overrides))
    checked = validate(composed)
    findings = (*composed.findings, *checked.findings, *check(checked.run, composed.origins, checked.sound))
    # What was not looked at, behind another finding, has not passed.
    missed = {rule.name for rule in RULES if not rule.can_run(checked.sound)}
    missed |= set() if checked.whole else {name for name in ASKED if TABLE[name].code.startswith("VT1")}
    failed = {finding.rule for finding in findings if finding.severity == "error"}
    checks = {name: "failed" if name in failed else "not-run" if name in missed else "passed" for name in ASKED}
    loaded = None if failed else Loaded(checked.run, checked.run.model_dump(mode="json"), composed.origins, findings)
    return Examined(loaded, findings, checks)


def effective_yaml(loaded: Loaded) -> str:
    """Every setting in force, each with where it comes from, as a recipe that can be run again."""
    return as_yaml(loaded.plain, loaded.origins)


def _named(composed: Composed) -> Composed:
    """A run has its recipe's name unless it says otherwise."""
    run = composed.values.get("run", {})
    if not isinstance(run, dict) or "name" in run:
        return composed
    return Composed(composed.file, {**composed.values, "run": {"name": composed.file.name, **run}}, composed.origins, composed.findings)
