"""The known silent bugs of what is installed: which advisories concern it, and the output."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vtool.diagnostics import Diagnostic, Origin
from vtool.doctor.advisories import Advisories, Advisory, Releases, advisories, version
from vtool.doctor.interpreter import FoundPackage, installed_any, look_up, unreadable
from vtool.doctor.script import Script

RULES = ("known-silent-bug", "release-unknown")


@dataclass(frozen=True, slots=True)
class Concern:
    """An advisory that concerns what is installed."""

    advisory: Advisory
    found: FoundPackage
    origin: Origin | None = None
    """The setting that shows its condition."""
    shown: bool = False
    """True where a recipe or a script shows the condition."""


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Advisories of a package that get no verdict, and why."""

    package: str
    names: tuple[str, ...]
    why: str
    damaged: bool = False

    @property
    def count(self) -> str:
        """The advisories, in words."""
        return self.names[0] if len(self.names) == 1 else f"{len(self.names)} advisories"


@dataclass(frozen=True, slots=True)
class SilentBugs:
    """The outcome of checking an interpreter against the advisories."""

    installed: tuple[FoundPackage, ...]
    concerns: tuple[Concern, ...]
    unjudged: tuple[Unjudged, ...]
    closed: tuple[str, ...]
    """Folders that could not be listed."""
    empty: str = ""
    """The reason why nothing at all was looked at."""
    of_script: bool = False
    """True where the settings are known with which packages are used."""

    @property
    def whole(self) -> bool:
        """Return whether the release of every package is known."""
        known = all(one.version is not None for one in self.installed)
        return known and not (self.empty or self.closed)

    @property
    def findings(self) -> tuple[Diagnostic, ...]:
        """A finding for each advisory that concerns it, and for what could not be looked at."""
        return (
            *(_finding(one) for one in self.concerns),
            *(_unknown(one) for one in self.unjudged),
            *(
                Diagnostic(
                    "release-unknown",
                    f"{folder} cannot be listed: what is installed there is not known",
                    "run vtool as the user who trains",
                    severity="warning",
                )
                for folder in self.closed
            ),
        )

    @property
    def checks(self) -> dict[str, str]:
        """The states of `RULES`."""
        shown = any(one.severity == "error" for one in self.findings)
        missed = bool(self.reasons)
        return {
            "known-silent-bug": "failed" if shown else "not-run" if missed else "passed",
            "release-unknown": "not-run" if self.empty else "passed",
        }

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons, by rule, why nothing, or not everything, was looked at."""
        if self.empty:
            return dict.fromkeys(RULES, self.empty)
        missed = list(dict.fromkeys([*(one.package for one in self.unjudged), *self.closed]))
        return {"known-silent-bug": f"no verdict: {', '.join(missed)}"} if missed else {}

    @property
    def details(self) -> dict[str, Any]:
        """The details that the JSON has in addition to the findings."""
        return {
            "looked_at": {one.name: one.text or None for one in self.installed},
            "advisories": [_plain(one) for one in self.concerns],
            "unjudged": [
                {"package": one.package, "why": one.why, "advisories": list(one.names)}
                for one in self.unjudged
            ],
        }

    @property
    def listed(self) -> tuple[Diagnostic, ...]:
        """The findings that `lines` report: all but what a script shows."""
        shown = {one.advisory.name for one in self.concerns if one.shown}
        return tuple(
            one
            for one in self.findings
            if one.rule != "known-silent-bug" or one.parameter not in shown
        )

    @property
    def lines(self) -> Iterator[str]:
        """The lines for a reader: by package, one or two for each advisory."""
        yield "known silent bugs"
        if self.empty:
            yield f"  not looked at: {self.empty}"
            return
        for found in self.installed:
            if own := [one for one in self.concerns if one.found is found and not one.shown]:
                yield f"  {found.name} {found.text}"
                yield from _wrapped(
                    f"warning: {one.advisory.name} ({one.advisory.state}): {one.advisory.title}"
                    for one in own
                )
        mentioned = {one.found.name for one in self.concerns}
        mentioned |= {one.package.partition(" ")[0] for one in self.unjudged}
        if free := [
            f"{one.name} {one.text}"
            for one in self.installed
            if one.name not in mentioned and one.version is not None
        ]:
            none = "none that these settings meet" if self.of_script else "none known"
            yield from _wrapped([f"{none}: {', '.join(free)}"], 2)
        if self.unjudged or self.closed:
            yield "  no verdict"
            yield from _wrapped(
                [f"{one.package}: {one.why}; not judged: {one.count}" for one in self.unjudged]
                + [f"{folder} cannot be listed" for folder in self.closed]
            )
        yield from _wrapped(self._advice, 2)

    @property
    def _advice(self) -> Iterator[str]:
        upgrades: dict[str, Version] = {}
        for one in self.concerns:
            if fixed := one.advisory.fixed:
                upgrades[one.found.name] = max(upgrades.get(one.found.name, fixed), fixed)
        if upgrades:
            asked = " ".join(f"'{name}>={one}'" for name, one in upgrades.items())
            yield f"those that are fixed go with: pip install {asked}"
        if self.concerns:
            yield "when each occurs, what comes of it, what avoids it: vtool explain NAME"


def examine_packages(
    paths: Sequence[str], script: Script | None = None, known: Advisories | None = None
) -> SilentBugs:
    """Check what can be imported from some folders against the advisories.

    Args:
        paths: those folders.
        script: the settings with which it is used; None: only what is installed is known.
        known: the advisories; by default, those that vtool comes with.
    """
    known = known or advisories()
    there = {
        name: found
        for name, package in known.packages.items()
        if (found := look_up(package.distributions, package.module, paths)) is not None
    }
    concerns, unjudged = [], []
    for name, found in there.items():
        left: dict[str, list[str]] = {}
        for one in known.advisories:
            if one.package != name or not _plausible(one, paths):
                continue
            shown, origin = _shown(one, script)
            if shown is False:
                continue
            if one.releases is None:
                if any(found.commit.startswith(commit) for commit in one.commits):
                    concerns.append(Concern(one, found, origin, shown is True))
                continue
            if found.version is None:
                left.setdefault(found.why, []).append(one.name)
                continue
            state = one.releases.state(found.version)
            if state == "affected":
                concerns.append(Concern(one, found, origin, shown is True))
            elif state == "unknown":
                left.setdefault(_why(one.releases, found.version), []).append(one.name)
        unjudged += [
            Unjudged(f"{found.name} {found.text}".strip(), tuple(names), why, found.damaged)
            for why, names in left.items()
        ]
    trainer = script.trainer if script else "vtool"
    if there and trainer in known.packages and trainer not in there:
        own = tuple(one.name for one in known.advisories if one.package == trainer)
        unjudged.append(Unjudged(trainer, own, "it is not installed in this Python (--python EXE)"))
    empty = "" if there else "none of the packages that have advisories is installed"
    if not there and not installed_any(paths):
        empty = "there is no metadata of any package"
    return SilentBugs(
        tuple(there.values()),
        tuple(concerns),
        tuple(unjudged),
        unreadable(paths),
        empty,
        of_script=script is not None,
    )


def describe_advisory(one: Advisory) -> str:
    """Return an advisory in full, as `vtool explain` prints it."""
    rows = {
        "releases": one.where,
        "beside": ", ".join(f"{name}{wanted}" for name, wanted in one.beside.items()),
        "when": one.condition,
        "effect": one.effect,
        "remedy": one.remedy,
        "found by": one.rule or "",
        "verified": one.verified,
        "upstream": " ".join(one.upstream),
    }
    body = "\n".join(f"  {head + ':':<10} {text}" for head, text in rows.items() if text)
    return f"{one.name}\n{one.title}\n\n{body}"


def _wrapped(texts: Iterable[str], indent: int = 4) -> Iterator[str]:
    for text in texts:
        yield from textwrap.wrap(
            text,
            80,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )


def _plausible(one: Advisory, paths: Sequence[str]) -> bool:
    """Return whether what it needs besides its own package is there, as far as versions say."""
    for name, wanted in one.beside.items():
        found = next(iter(metadata.distributions(name=name, path=list(paths))), None)
        if found is None:
            return False
        try:
            release = Version(found.version)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it is there; more is not known
        if not SpecifierSet(wanted).contains(release, prereleases=True):
            return False
    return True


def _shown(one: Advisory, script: Script | None) -> tuple[bool | None, Origin | None]:
    """Return whether a script shows the condition, and where; None where it does not say."""
    if script is None:
        return None, None
    if script.trainer not in one.signs:
        return False, None  # this trainer does not run that code
    signs = one.signs[script.trainer]
    if not script.known:
        return None, None
    outcomes = [sign.holds(script.settings) for sign in signs]
    if False in outcomes:
        return False, None
    if not signs or None in outcomes:
        return None, None
    places = (script.places.get(sign.setting or "") for sign in signs)
    return True, next((place for place in places if place), None)


def _why(releases: Releases, release: Version) -> str:
    if release < version(releases.since):
        return "older than the releases that were looked at"
    if releases.fixed is None:
        return "newer than the releases that were looked at"
    return "between the last release with it and the first without"


def _finding(one: Concern) -> Diagnostic:
    bug = one.advisory
    return Diagnostic(
        "known-silent-bug",
        f"{one.found.name} {one.found.text}: {bug.title} ({bug.name}, {bug.state})"
        + (f"; {bug.effect}" if one.shown else ""),
        bug.remedy,
        bug.name,
        one.origin,
        expected=f">={bug.fixed}" if bug.fixed else None,
        seen=one.found.text,
        # what a trainer means to do is a warning in its recipe, as `validate-config` has it
        severity="error" if one.shown and not bug.by_design else "warning",
    )


def _unknown(one: Unjudged) -> Diagnostic:
    return Diagnostic(
        "release-unknown",
        f"{one.package}: {one.why}; not judged: {one.count}",
        "install it again: pip install --force-reinstall" if one.damaged else None,
        one.package.partition(" ")[0],
        severity="warning" if one.damaged else "note",
    )


def _plain(one: Concern) -> dict[str, Any]:
    bug = one.advisory
    return {
        "name": bug.name,
        "package": one.found.name,
        "installed": one.found.text,
        "condition_shown": one.shown,
        "state": bug.state,
        "releases": bug.releases.model_dump(exclude_none=True) if bug.releases else {},
        "title": bug.title,
        "condition": bug.condition,
        "effect": bug.effect,
        "remedy": bug.remedy,
        "upstream": list(bug.upstream),
        "verified": bug.verified,
    }
