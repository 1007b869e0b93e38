"""`load_run`: from a recipe and `KEY=VALUE` to a frozen, validated run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtool.config.compose import Composed, compose_recipe
from vtool.config.effective import as_yaml
from vtool.config.origins import Origins
from vtool.config.rules import RULES, check, unasked
from vtool.config.schema import LoadCheck, Run, Settings
from vtool.config.validate import Checked, schema_of, validate
from vtool.diagnostics import RULES as TABLE
from vtool.diagnostics import Diagnostic, Findings

# launch-conflict is about the processes that torchrun has started, and is asked where they are.
FOREIGN = ("setting-without-reader", "setting-dropped", "no-counterpart")
"""The rules about recipes of other trainers."""
ASKED = tuple(
    name
    for name, rule in TABLE.items()
    if rule.code < "VT3" and name not in ("launch-conflict", *FOREIGN)
)
"""The rules that a recipe is checked against."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A recipe that can be run."""

    settings: Settings
    plain: dict[str, Any]
    """Every setting in force, defaults included, as plain values."""
    origins: Origins
    notes: tuple[Diagnostic, ...] = ()
    """Findings that do not stand against running it."""

    @property
    def run(self) -> Run:
        """The settings of a recipe of kind `sft`."""
        assert isinstance(self.settings, Run), "load_run looks at the kind"
        return self.settings

    @property
    def load_check(self) -> LoadCheck:
        """The settings of a recipe of kind `load_check`."""
        assert isinstance(self.settings, LoadCheck), "load_load_check looks at the kind"
        return self.settings


@dataclass(frozen=True, slots=True)
class Examined:
    """What the checks say of a recipe, whether or not it can be run."""

    loaded: Loaded | None
    findings: tuple[Diagnostic, ...]
    checks: Mapping[str, str]
    """For each rule of `ASKED`: `passed`, `failed` or `not-run`."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why rules were not run, where it is not for a finding that stands before them."""

    @property
    def details(self) -> dict[str, dict[str, str]]:
        """The reasons, as a result has them."""
        return {rule: {"reason": reason} for rule, reason in self.reasons.items()}


def load_run(recipe: str, overrides: Sequence[str] = ()) -> Loaded:
    """Compose, validate and cross-check a recipe: a shipped one by its name, or any YAML file by
    its path.

    Raises:
        Findings: all that stands against it, at once; `fatal` where it could not be read.
    """
    return _of_kind("sft", recipe, overrides)


def load_load_check(recipe: str, overrides: Sequence[str] = ()) -> Loaded:
    """The same, for a recipe of kind `load_check`."""
    return _of_kind("load_check", recipe, overrides)


def _of_kind(kind: str, recipe: str, overrides: Sequence[str]) -> Loaded:
    examined = examine(recipe, overrides)
    if examined.loaded is None:
        raise Findings(examined.findings)
    found = examined.loaded.plain["kind"]
    if found != kind:
        message = (
            f"`{recipe}` is a recipe of kind {found}, and this command takes those of kind {kind}"
        )
        help = (
            f"vtool load-check {recipe}" if found == "load_check" else f"vtool train sft {recipe}"
        )
        raise Findings(
            Diagnostic(
                "unknown-choice",
                message,
                help,
                "kind",
                examined.loaded.origins.near("kind"),
                kind,
                found,
            ),
            fatal=True,
        )
    return examined.loaded


def examine(recipe: str, overrides: Sequence[str] = ()) -> Examined:
    """The same, without raising for what can be told of a recipe that was read.

    Raises:
        Findings: `fatal`, where it could not be read.
    """
    _, examined = _checked(_named(compose_recipe(recipe, overrides)))
    return examined


def examine_foreign(path: Path) -> Examined:
    """The same of a recipe of verl's SFT trainer: what means the same is checked by our rules, in
    the words of that file.

    Raises:
        Findings: `fatal`, where it could not be read.
    """
    from vtool.config.foreign.verl import in_their_words, read_verl

    composed, findings, names = read_verl(path)
    loaded, examined = _checked(composed)
    # what nothing is known of is none of our rules' business
    unknown = {"model.path", "data.train"} - names.keys()
    findings = (
        *(in_their_words(one, names) for one in examined.findings if one.parameter not in unknown),
        *findings,
    )
    failed = {one.rule for one in findings if one.severity == "error"}
    unjudged = {one.rule for one in findings if one.rule == "no-counterpart"}
    checks = {
        name: "passed" if state == "failed" else state for name, state in examined.checks.items()
    } | dict.fromkeys(FOREIGN, "passed")
    checks |= dict.fromkeys(unjudged, "not-run") | dict.fromkeys(sorted(failed), "failed")
    return Examined(None if failed else loaded, findings, checks, examined.reasons)


def _checked(composed: Composed) -> tuple[Loaded | None, Examined]:
    """What the schema makes of it, if it is sound; and what the checks say."""
    checked = validate(composed)
    crossed = (
        check(checked.run, composed.origins, checked.sound) if isinstance(checked.run, Run) else ()
    )
    around = _of_npu(checked, composed.origins)
    findings = (*composed.findings, *checked.findings, *crossed, *around.findings)
    # What was not looked at, behind another finding, has not passed.
    crossing = {rule.name for rule in RULES}
    asked = (
        ASKED
        if isinstance(checked.run, Run)
        else tuple(name for name in ASKED if name not in crossing)
    )
    asked += around.asked
    missed = {rule.name for rule in RULES if not rule.can_run(checked.sound)} | set(around.missed)
    reasons = (
        unasked(checked.run, checked.sound) if isinstance(checked.run, Run) else {}
    ) | around.reasons
    missed |= (
        set() if checked.whole else {name for name in ASKED if TABLE[name].code.startswith("VT1")}
    )
    failed = {finding.rule for finding in findings if finding.severity == "error"}
    checks = {
        name: (
            "failed"
            if name in failed
            else "not-run"
            if name in missed | reasons.keys()
            else "passed"
        )
        for name in asked
    }
    sound = not any(finding.severity == "error" for finding in checked.findings)
    loaded = (
        Loaded(checked.run, checked.run.model_dump(mode="json"), composed.origins, findings)
        if sound
        else None
    )
    return loaded, Examined(None if failed else loaded, findings, checks, reasons)


@dataclass(frozen=True, slots=True)
class _Around:
    """What is found around a recipe, on the machine that it is checked on."""

    asked: tuple[str, ...] = ()
    findings: tuple[Diagnostic, ...] = ()
    missed: tuple[str, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)


def _of_npu(checked: Checked, origins: Origins) -> _Around:
    """Of a recipe for an NPU:

    variables, packages, and settings that an NPU cannot obey. Nothing of another recipe.
    """
    run = checked.run
    if not isinstance(run, Run) or "device" not in checked.sound or run.device.kind != "npu":
        return _Around()
    from vtool.config.environment import npu
    from vtool.config.environment.machine import read_machine

    machine = read_machine(os.environ)
    if not {"model", "data", "launch", "engine"} <= checked.sound:
        return _Around(
            npu.ASKED, tuple(npu.check_machine(machine)), npu.OF_SETTINGS, npu.unasked(machine)
        )
    return _Around(
        npu.ASKED, tuple(npu.check_recipe(run, origins, machine)), (), npu.unasked(machine)
    )


def effective_yaml(loaded: Loaded) -> str:
    """Every setting in force, each with where it comes from, as a recipe that can be run again."""
    return as_yaml(loaded.plain, loaded.origins)


def _named(composed: Composed) -> Composed:
    """A run has its recipe's name unless it says otherwise."""
    run = composed.values.get("run", {})
    if schema_of(composed.values) is not Run or not isinstance(run, dict) or "name" in run:
        return composed
    return Composed(
        composed.file,
        {**composed.values, "run": {"name": composed.file.name, **run}},
        composed.origins,
        composed.findings,
    )
