"""Advisories: silent bugs of released packages, and the releases that have them.

They are in advisories.yaml, one entry a bug; docs/advisories.md is made of it.
"""

import re
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from vtool.config.foreign.named_model import likely_name
from vtool.diagnostics import RULES

ADVISORIES_FILE = Path(__file__).with_name("advisories.yaml")

Trainer = Literal["vtool", "transformers", "trl", "llamafactory", "ms-swift", "verl", "axolotl"]
"""The trainers whose settings can show a condition; `vtool` stands for its own recipes."""
FROM: tuple[Trainer, ...] = ("verl", "trl", "llamafactory", "ms-swift", "axolotl")
"""The trainers whose files are read."""
State = Literal["affected", "clean", "unknown"]

_EDGE = r"^[0-9][0-9a-z.]* (ran|read|reported)$"
_URL = r"^https://github\.com/[\w.-]+/[\w.-]+/((issues|pull|commit)/\w+|commits/[\w./-]+\.py)$"
_NAME = r"^[a-z]+-[0-9]+(-[a-z0-9]+)*$"
EdgeText = Annotated[str, Field(pattern=_EDGE)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Releases(_Strict):
    """The edges of the releases that have a bug, each as `VERSION EVIDENCE`.

    Evidence is `ran`, where both its effect and its absence were seen; `read`, where the code of
    that release was read; or `reported`, where upstream says so.

    Between `since` and `last` every release has it. No verdict is given about a release that lies
    between an edge with the bug and one without.
    """

    before: EdgeText | None = None
    """The newest release before the bug; without one, older releases were not looked at."""
    since: EdgeText
    """The oldest release in which it was found."""
    last: EdgeText
    """The newest release in which it was found."""
    fixed: EdgeText | None = None
    """The oldest release without it again; none: it is open."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        edges = [version(edge) for edge in (self.before, self.since, self.last, self.fixed) if edge]
        assert edges == sorted(edges), "edges go from the oldest release to the newest"
        assert version(self.since) not in (self.before and version(self.before), self._fixed), (
            "a release cannot have the bug and be without it"
        )
        assert version(self.last) != self._fixed, "a release cannot have the bug and be without it"
        return self

    @property
    def _fixed(self) -> Version | None:
        return version(self.fixed) if self.fixed else None

    def state(self, one: Version) -> State:
        """Return the state of a release: affected, clean or unknown."""
        if version(self.since) <= one <= version(self.last):
            return "affected"
        if self._fixed is not None and one >= self._fixed:
            return "clean"
        if self.before is not None and one <= version(self.before):
            return "clean"
        return "unknown"

    @property
    def words(self) -> str:
        """The edges in words, each with its evidence."""
        text = f"{_with_evidence(self.since)} to {_with_evidence(self.last)}"
        text = _with_evidence(self.since) if self.since == self.last else text
        text += f"; not yet in {_with_evidence(self.before)}" if self.before else ""
        return text + (f"; fixed in {_with_evidence(self.fixed)}" if self.fixed else "; not fixed")


class Sign(_Strict):
    """A setting of a trainer's own file which shows that a bug's condition holds, or does not.

    Exactly one of `any_of`, `above`, `given`, `matches` and `unseen` is there.
    """

    setting: str | None = None
    """The dotted name, as that file has it."""
    any_of: tuple[str | int | float | bool | None, ...] | None = None
    """Values with which the condition holds."""
    above: float | None = None
    """The condition holds with a larger number."""
    given: bool | None = None
    """True where the setting has to be there, and not empty; false where it must not be."""
    matches: str | None = None
    """The condition holds where this regular expression is found in the value, or in the name of
    the family of the model that the value is; a path may lead to any."""
    unseen: str | None = None
    """A part of the condition that no setting shows: with it there is never an error."""
    default: str | int | float | bool | None = None
    """The value in force where the file says nothing; null: that is not known."""

    @model_validator(mode="after")
    def _one_test(self) -> Self:
        tests = (self.any_of, self.above, self.given, self.matches, self.unseen)
        assert sum(test is not None for test in tests) == 1, "a sign is one test"
        assert (self.setting is None) == (self.unseen is not None), "a test is of a setting"
        if self.matches is not None:
            re.compile(self.matches)
        return self

    def holds(self, settings: Mapping[str, Any]) -> bool | None:
        """Return whether the condition holds; None where the file does not say.

        Args:
            settings: those of the file, by dotted name.
        """
        if self.setting is None:
            return None
        value = settings.get(self.setting)
        if self.given is not None:
            return (value not in (None, False, "", [], {})) == self.given
        if value is None:
            value = self.default
        if value is None and not (self.any_of and None in self.any_of):
            return None
        if self.matches is not None:
            found = re.search(self.matches, str(value)) is not None
            usual = None if found else likely_name(value)
            return re.search(self.matches, usual) is not None if usual else found or None
        if self.above is not None:
            number = _number(value)
            return None if number is None else number > self.above
        return any(value == one and type(value) is type(one) for one in self.any_of or ())


class Package(_Strict):
    """A package that has advisories."""

    distributions: tuple[str, ...]
    """The names that pip knows it by."""
    module: str
    """The name that Python imports."""


class Advisory(_Strict):
    """A silent bug of released versions of a package."""

    name: Annotated[str, Field(pattern=_NAME)]
    """PROJECT-NUMBER[-word], with the number of the issue or the pull request upstream."""
    package: str
    """A key of `packages`."""
    title: Annotated[str, Field(max_length=100)]
    """The mistake, in one line."""
    releases: Releases | None = None
    """The releases that have it; none, where `commits` between two releases had it."""
    commits: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}$")], ...] = ()
    """Commits that have it and are in no release, for installs from git."""
    beside: dict[str, str] = {}
    """Packages without which it cannot occur: by distribution, the versions (PEP 440; empty: any).
    """
    condition: str
    """When it occurs."""
    signs: dict[Trainer, tuple[Sign, ...]] = {}
    """By trainer that runs this code, what in its file shows the condition: where all hold, the
    finding is an error; where one does not, there is none. Empty: the file cannot show it."""
    effect: str
    """The damage, with a figure where one was measured."""
    remedy: str
    """The setting or the release that avoids it."""
    upstream: Annotated[tuple[Annotated[str, Field(pattern=_URL)], ...], Field(min_length=1)]
    """Issues and pull requests; the history of a file where none was found."""
    by_design: bool = False
    """True where upstream documents it as what is meant."""
    case: Annotated[str, Field(pattern=_NAME)] | None = None
    """The file in timemachine/cases that runs it on both sides."""
    seen: str | None = None
    """The page in docs where another run of ours is written down."""
    rule: str | None = None
    """The rule of vtool that finds it in a run."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        assert bool(self.releases) != bool(self.commits), f"{self.name}: releases or commits"
        ran = any(edge.endswith(" ran") for edge in self.edges)
        assert not ran or self.case or self.seen, f"{self.name}: nothing says how it was run"
        for specifier in self.beside.values():
            SpecifierSet(specifier)
        assert self.rule is None or self.rule in RULES, f"{self.name}: no rule {self.rule}"
        return self

    @property
    def edges(self) -> tuple[str, ...]:
        """The edges of its releases that are known."""
        one = self.releases
        return tuple(edge for edge in (one.since, one.last, one.fixed) if edge) if one else ()

    @property
    def fixed(self) -> Version | None:
        """The oldest release without it again."""
        fixed = self.releases.fixed if self.releases else None
        return version(fixed) if fixed else None

    @property
    def state(self) -> str:
        """The state, in two words."""
        if self.releases is None:
            return "in no release"
        if self.fixed is not None:
            return f"fixed in {self.fixed}"
        return "by design" if self.by_design else "open"

    @property
    def where(self) -> str:
        """The releases or the commits that have it, with their evidence."""
        if self.releases is not None:
            return f"{self.package} {self.releases.words}"
        return f"{self.package} from git, at {', '.join(self.commits)}; in no release"

    @property
    def verified(self) -> str:
        """The way in which it is known, in words."""
        if self.case is not None:
            return f"timemachine/cases/{self.case}.yaml"
        if self.seen is not None:
            return self.seen
        if any(edge.endswith("reported") for edge in self.edges):
            return "reported: no run of ours"
        return "read: the code of both sides, no run of ours"


class Advisories(_Strict):
    """The advisories, and the packages that they are about."""

    packages: dict[str, Package]
    advisories: tuple[Advisory, ...]

    @model_validator(mode="after")
    def _known(self) -> Self:
        names = [one.name for one in self.advisories]
        twice = {name for name in names if names.count(name) > 1}
        assert not twice, f"these names are there twice: {', '.join(sorted(twice))}"
        for one in self.advisories:
            assert one.package in self.packages, f"{one.name}: no package {one.package}"
            if one.package in FROM:
                assert one.package in one.signs, f"{one.name}: signs lack {one.package}"
        return self

    @cached_property
    def by_name(self) -> Mapping[str, Advisory]:
        """The advisories by their names."""
        return {one.name: one for one in self.advisories}


def _with_evidence(edge: str) -> str:
    release, _, evidence = edge.partition(" ")
    return f"{release} ({evidence})"


def version(edge: str) -> Version:
    """Return the release that an edge names."""
    return Version(edge.partition(" ")[0])


@cache
def advisories() -> Advisories:
    """Return the advisories that vtool comes with."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return Advisories.model_validate(yaml.load(ADVISORIES_FILE.read_text(encoding="utf-8"), loader))


def schema() -> dict[str, Any]:
    """Return the JSON schema of the file, for editors."""
    return TypeAdapter(Advisories).json_schema()


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
