"""`load_run`: from a recipe and `KEY=VALUE` to a frozen, validated run."""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from vtool.config import rules, tracker_packages
from vtool.config.adapter_rate import with_rate_of_adapters
from vtool.config.compose import Composed, compose_recipe
from vtool.config.effective import GAP, as_yaml
from vtool.config.environment import packages
from vtool.config.foreign import rules as foreign
from vtool.config.foreign.theirs import ForeignRecipe
from vtool.config.hub_model import with_hub_folder
from vtool.config.limited import in_child
from vtool.config.model_folder import with_family_of_folder
from vtool.config.origins import Origins
from vtool.config.path_settings import without_impossible_paths, without_outside_paths
from vtool.config.resources import BEGIN_WITH_DEFAULTS, refuse_link
from vtool.config.rows_recipe import names_rows, of_subject
from vtool.config.schema import LoadCheck, Run, Settings
from vtool.config.schema.base import NotValid
from vtool.config.schema.formats.names import source_names
from vtool.config.validate import CheckedRecipe, schema_of, validate
from vtool.diagnostics import RULES, Diagnostic, Findings, rules_recipe
from vtool.diagnostics.printable import printable

FOREIGN_RULES = tuple(rule.name for rule in foreign.RULES)
"""Rules about recipes of other trainers."""
_BY_FAMILY = {"image-longer-than-row", "pixel-bounds"}
_NOT_LOOKED_AT = ("no-counterpart", "not-on-this-machine")
_LACKS = ("not-built-on-engine", "extra-not-installed")
"""Rules about what vtool or this machine has not got: no mistake in another trainer's recipe."""
_BY_CODE = sorted((*rules_recipe.RULES, *rules.RULES), key=lambda rule: rule.code)
_SCHEMA_RULES = tuple(rule.name for rule in _BY_CODE if rule.code < "VT2")
_SETTINGS_RULES = tuple(rule.name for rule in _BY_CODE if rule.code >= "VT2")
RECIPE_RULES = (*_SCHEMA_RULES, *_SETTINGS_RULES)
"""Rules that every recipe is checked against, in the order of their codes."""
ALWAYS_CHECKED = (*RECIPE_RULES, *packages.RELEASE_RULES)
"""Rules of `RECIPE_RULES`, and those about what is installed on this machine."""


@dataclass(frozen=True, slots=True, repr=False)
class Loaded:
    """A recipe that can be run."""

    settings: Settings
    plain: dict[str, Any]
    """Every setting in force, defaults included, as plain values."""
    origins: Origins
    notes: tuple[Diagnostic, ...] = ()
    """Findings that do not stand against running it."""

    def __repr__(self) -> str:
        if not isinstance(self.settings, Run):
            return f"<a recipe of kind {self.plain['kind']}; .settings has all of it>"
        run = self.settings
        model = run.model.path or f"size {run.model.size}, random weights"
        sources = [
            f"{split}: {', '.join(source_names(entries)[:3])}{' …' * (len(entries) > 3)}"
            for split, entries in run.data.splits.items()
            if entries
        ]
        train = run.train
        length = f"{train.steps:,}" if train.steps else f"{train.epochs:g} epochs"
        lines = (
            f"<{run.run.name}: {run.model.family}, {model}, {run.model.dtype}",
            f"engine: {run.engine.kind}, processes: {run.launch.nproc or 1}",
            f"rows: {'; '.join(sources)}",
            f"steps: {length}, rows a step: {run.data.global_batch_size}",
            f"folder: {run.folder}>",
        )
        return "\n  ".join(map(printable, lines))

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
    """The result of every check of a recipe, whether or not it can be run."""

    loaded: Loaded | None
    findings: tuple[Diagnostic, ...]
    checks: Mapping[str, str]
    """For each rule of `ALWAYS_CHECKED`: `passed`, `failed` or `not-run`."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """By rule, why this machine cannot answer it."""

    @property
    def details(self) -> dict[str, dict[str, str]]:
        """The reasons, as a result has them."""
        return {rule: {"reason": reason} for rule, reason in self.reasons.items()}


def load_run(recipe: str, overrides: Sequence[str] = ()) -> Loaded:
    """Compose, validate and cross-check a shipped recipe by its name, or a YAML file by its path.

    A file or a folder of rows takes the place of a recipe (`rows_recipe`).

    Raises:
        Findings: all findings, at once; `fatal` where it could not be read.
    """
    return _of_kind("sft", recipe, overrides)


def load_load_check(recipe: str, overrides: Sequence[str] = ()) -> Loaded:
    """Load a recipe of kind `load_check`, as `load_run` does one of kind `sft`."""
    return _of_kind("load_check", recipe, overrides)


def _of_kind(kind: str, recipe: str, overrides: Sequence[str]) -> Loaded:
    examined = examine(recipe, overrides)
    if examined.loaded is None:
        raise Findings(examined.findings)
    found = examined.loaded.plain["kind"]
    if found != kind:
        raise Findings(
            Diagnostic(
                "unknown-choice",
                f"`{recipe}` is a recipe of kind {found}, and this command takes those of kind"
                f" {kind}",
                f"vtool load-check {recipe}"
                if found == "load_check"
                else f"vtool train sft {recipe}",
                "kind",
                examined.loaded.origins.near("kind"),
                kind,
                found,
            ),
            fatal=True,
        )
    return examined.loaded


def examine(recipe: str, overrides: Sequence[str] = (), *, trusted: bool = True) -> Examined:
    """Check a recipe, and return its findings instead of raising them.

    Args:
        trusted: False for the recipe of a stranger (`compose_recipe`).

    Raises:
        Findings: `fatal`, where it could not be read, or is rows that are not there.
    """
    _, examined = _checked(_named(compose_recipe(recipe, overrides, trusted=trusted)), trusted)
    if names_rows(recipe):
        examined = replace(examined, findings=tuple(of_subject(one) for one in examined.findings))
        if any((one.rule, one.parameter) == ("path-not-found", None) for one in examined.findings):
            raise Findings(examined.findings, fatal=True)
    return examined


def read_foreign(path: Path, trainer: str, *, trusted: bool = True) -> ForeignRecipe:
    """Read a recipe of another SFT trainer as ours.

    Raises:
        Findings: `fatal`, where it could not be read.
    """
    if trusted:
        return _read_foreign(path, trainer)
    refuse_link(path)
    reading: ForeignRecipe = in_child(_read_foreign, path, trainer)
    return reading


def _read_foreign(path: Path, trainer: str) -> ForeignRecipe:
    from vtool.config.foreign.axolotl import read_axolotl
    from vtool.config.foreign.hf import read_hf
    from vtool.config.foreign.refuse import refuse_another
    from vtool.config.foreign.trainers import TRAINERS
    from vtool.config.foreign.verl import read_verl

    refuse_another(path, trainer)
    if trainer == "verl":
        return read_verl(path)
    if trainer == "axolotl":
        return read_axolotl(path)
    return read_hf(path, TRAINERS[trainer])


def examine_foreign(path: Path, *, trainer: str = "verl", trusted: bool = True) -> Examined:
    """Check a recipe of another SFT trainer by our rules, in the words of its own file.

    Args:
        trainer: verl, trl, llamafactory, ms-swift or axolotl.
        trusted: False for the recipe of a stranger.

    Raises:
        Findings: `fatal`, where it could not be read.
    """
    from vtool.config.foreign.verl import in_their_words
    from vtool.config.foreign.words import WORDS

    reading = read_foreign(path, trainer, trusted=trusted)
    loaded, examined = _checked(reading.composed, trusted)
    # what nothing is known of is none of our rules' business
    unknown = {
        "model.path",
        "model.size",
        "data.train",
        "data.global_batch_size",
    } - reading.names.keys()
    unknown |= set(reading.open)
    words = [WORDS.get(name.rpartition(".")[2]) for name in reading.refused]
    # verl has names of ours for some
    unread = {word.ours for word in words if word and word.ours} | set(reading.refused)
    if "model.path" in unknown:  # what is of that model
        unknown |= {"model.revision"}
        named = "model.family" in reading.names
        unknown |= set() if named else {"lora.targets", "lora.exclude", "lora.modules_to_save"}
    groups = {name.partition(".")[0] for name in unread}
    # how many pixels a token has is the family's; none is known here
    of_a_family = set() if "model.family" in reading.names or trainer == "verl" else _BY_FAMILY
    of_verl = trainer == "verl"
    findings = (
        *(
            in_their_words(_of_a_lack(one), reading.names, of_verl=of_verl, scales=reading.scales)
            for one in examined.findings
            if not _is_below(one.parameter, unknown | unread) and one.rule not in of_a_family
            if one.rule != "missing-key" or not _is_below(one.parameter, groups)
            if unread.isdisjoint(one.message.split())
        ),
        *reading.findings,
    )
    failed = {one.rule for one in findings if one.severity == "error"}
    unjudged = {one.rule for one in (*findings, *examined.findings)}
    unjudged = unjudged & {*_NOT_LOOKED_AT, *_LACKS} | of_a_family
    checks = {
        name: "passed" if state == "failed" else state for name, state in examined.checks.items()
    } | dict.fromkeys(FOREIGN_RULES, "passed")
    checks |= dict.fromkeys(unjudged, "not-run") | dict.fromkeys(sorted(failed), "failed")
    return Examined(None if failed else loaded, findings, checks, examined.reasons)


def _is_below(parameter: str | None, names: Collection[str]) -> bool:
    """Return whether a setting is one of these, or an entry of one."""
    return any(parameter == name or str(parameter).startswith(f"{name}.") for name in names)


def _of_a_lack(finding: Diagnostic) -> Diagnostic:
    """Return a finding about what vtool has not got as the note that it is to another trainer."""
    if finding.rule == "extra-not-installed":  # it is converted, and its package is all it lacks
        return Diagnostic(
            "not-on-this-machine",
            finding.message,
            finding.help,
            finding.parameter,
            finding.origin,
        )
    if finding.rule not in _LACKS:
        return finding
    return Diagnostic(
        "no-counterpart",
        f"nothing here does the same: {finding.message}",
        "nothing is reported on it",
        finding.parameter,
        finding.origin,
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage of checking a recipe."""

    rules: Sequence[str] = ()
    findings: Sequence[Diagnostic] = ()
    missed: Collection[str] = ()
    """Rules that did not run on everything, because of a finding."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """By rule, why this machine cannot answer it."""


def _without(outcome: rules.RulesOutcome, rule: str) -> rules.RulesOutcome:
    """Return the outcome of the other rules; the one is not run."""
    findings = tuple(finding for finding in outcome.findings if finding.rule != rule)
    return replace(outcome, findings=findings, missed=outcome.missed | {rule})


def _checked(composed: Composed, trusted: bool = True) -> tuple[Loaded | None, Examined]:
    """Return the settings where the schema accepts them, and the result of every check."""
    checked = validate(composed)
    stages, settings = [_schema_stage(composed, checked)], checked.run
    if isinstance(checked.run, Run):
        run, notes = without_impossible_paths(checked.run, composed.origins)
        stages.append(_Stage(findings=notes))
        if trusted:
            whole, run, notes = with_hub_folder(run, composed.origins)
            settings = whole if not notes and run is whole else settings
            stages.append(_Stage(findings=notes))
        else:
            run, notes = without_outside_paths(run, composed.origins, composed.file.path)
            stages.append(_Stage(findings=notes))
        made, origins = with_family_of_folder(run, composed.origins)
        made, origins = with_rate_of_adapters(made, origins)
        settings, run = made if settings is run else settings, made
        composed = replace(composed, origins=origins)
        outcome = rules.run_rules(run, composed.origins)
        if any((one.help or "").startswith(BEGIN_WITH_DEFAULTS) for one in checked.findings):
            outcome = _without(outcome, "conflicting-model-source")  # the other recipe says it
        stages += [
            _Stage(_SETTINGS_RULES, outcome.findings, outcome.missed, outcome.reasons),
            _npu_stage(run, composed.origins, trusted),
            _trackers_stage(run, composed.origins),
            _releases_stage(run, composed.origins),
        ]
    findings = tuple(finding for stage in stages for finding in stage.findings)
    reasons = {rule: reason for stage in stages for rule, reason in stage.reasons.items()}
    missed = reasons.keys() | {rule for stage in stages for rule in stage.missed}
    failed = {finding.rule for finding in findings if finding.severity == "error"}
    missed -= {finding.rule for finding in findings}  # it has run, and found something
    checks = {
        rule: "failed" if rule in failed else "not-run" if rule in missed else "passed"
        for stage in stages
        for rule in stage.rules
    } | dict.fromkeys(sorted(failed), "failed")  # of a file or a hub, which no stage lists
    loaded = (
        None
        if any(finding.severity == "error" for finding in checked.findings)
        else Loaded(settings, _plain(settings, composed), composed.origins, findings)
    )
    return loaded, Examined(None if failed else loaded, findings, checks, reasons)


def _schema_stage(composed: Composed, checked: CheckedRecipe) -> _Stage:
    names = _SCHEMA_RULES
    missed = [] if checked.whole else [name for name in names if RULES[name].code >= "VT1"]
    return _Stage(names, (*composed.findings, *checked.findings), missed)


def _plain(run: Settings, composed: Composed) -> dict[str, Any]:
    """Return settings as plain values; those that are not known as they are written."""
    plain = BaseModel.model_dump(run, mode="json")
    for place in composed.unknown:
        inside: Any = plain
        written: Any = composed.values
        for key in place[:-1]:
            written = written.get(key) if isinstance(written, dict) else None
            inside = inside.setdefault(key, {}) if isinstance(inside, dict) else None
        if isinstance(inside, dict) and isinstance(written, dict) and place[-1] in written:
            inside[place[-1]] = written[place[-1]]
    return plain


def _npu_stage(run: Run, origins: Origins, trusted: bool) -> _Stage:
    """Check variables, packages and settings, of a recipe with device.kind=npu only."""
    try:
        if run.device.kind != "npu":
            return _Stage()
    except NotValid:
        return _Stage()
    from vtool.config.environment import npu
    from vtool.config.environment.machine import read_machine

    if not trusted:
        reason = "with --untrusted no environment variable is read"
        return _Stage(npu.RULES, (), npu.RULES, dict.fromkeys(npu.RULES, reason))
    machine = read_machine(os.environ)
    found = [*npu.check_machine(machine)]
    missed: tuple[str, ...] = ()
    try:
        found += npu.check_settings(run, origins, machine)
    except NotValid:
        missed = npu.NPU_SETTINGS_RULES
    return _Stage(npu.RULES, found, missed, npu.unanswered_rules(machine))


def _trackers_stage(run: Run, origins: Origins) -> _Stage:
    """Check the packages of a recipe that has trackers."""
    with suppress(NotValid):
        if run.tracking:
            found = tuple(tracker_packages.missing_trackers(run, origins))
            return _Stage((tracker_packages.RULE,), found)
    return _Stage()


def _releases_stage(run: Run, origins: Origins) -> _Stage:
    """Check the releases of what the run is computed with, where they are installed here."""
    with suppress(NotValid):
        checked = packages.check_releases(run, origins)
        return _Stage(packages.RELEASE_RULES, checked.findings, (), checked.reasons)
    return _Stage(packages.RELEASE_RULES, (), packages.RELEASE_RULES)


def effective_yaml(loaded: Loaded) -> str:
    """Return every setting in force and where it comes from, as a recipe that can be run again."""
    return as_yaml(loaded.plain, loaded.origins)


def yaml_with_gaps(recipe: str, findings: Sequence[Diagnostic]) -> str | None:
    """Return the settings of a recipe with `???` where one must be given; None for other findings.

    Args:
        findings: what `examine` has found in it.
    """
    lacking = [one.parameter for one in findings if one.severity == "error" and one.parameter]
    if any(one.rule != "missing-key" for one in findings if one.severity == "error"):
        return None
    composed = _named(compose_recipe(recipe, ()))
    plain = BaseModel.model_dump(validate(composed).run, mode="json", warnings=False)
    for name in lacking:
        *groups, last = name.split(".")
        inside = plain
        for group in groups:
            inside = inside.setdefault(group, {})
        there = dict(inside)
        inside.clear()
        inside |= {last: GAP} | there
    return as_yaml(plain, composed.origins)


def _named(composed: Composed) -> Composed:
    """Name a run after its recipe, or its rows, where it has no name."""
    run = composed.values.get("run", {})
    if schema_of(composed.values) is not Run or not isinstance(run, dict) or "name" in run:
        return composed
    named = {**composed.values, "run": {"name": composed.name or composed.file.name, **run}}
    return replace(composed, values=named)
