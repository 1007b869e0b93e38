"""Checks of the packages that a run is computed with: there at all, and of a tested release."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Findings
from vtool.families import FAMILIES
from vtool.releases import (
    TESTED,
    defects_of,
    installed_versions,
    pip_range,
    tested_range,
    why_untested,
)

RELEASE_RULES = ("release-untested", "release-broken")
_NEEDED = ("torch", "transformers", "tokenizers", "safetensors")
_TRAIN = "pip install 'vtool[train]'"


@dataclass(frozen=True, slots=True)
class CheckedPackages:
    """Findings about releases, and why some could not be made."""

    findings: tuple[Diagnostic, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


def check_releases(run: Run, origins: Origins) -> CheckedPackages:
    """Check the packages that a run is computed with. Nothing is imported.

    A release that is not among the tested ones is a warning; an error only where it is known what
    it does wrong.
    """
    used = [name for name in TESTED if name != "peft" or run.lora is not None]
    found = installed_versions(used)
    if "transformers" not in found:
        return CheckedPackages(
            (), dict.fromkeys(RELEASE_RULES, "transformers is not installed here")
        )
    findings = [*_broken(found["transformers"], run.model.family, origins)]
    if not findings:
        findings += untested(found)
    return CheckedPackages(tuple(findings))


def untested(found: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Yield a warning for each package of a release that is not among the tested ones.

    Args:
        found: versions, by the names of `TESTED`.
    """
    for name, version in found.items():
        if (why := why_untested(name, version)) is not None:
            yield Diagnostic(
                "release-untested",
                f"{name} {version} {why}: {tested_range(name)}",
                f"pip install {pip_range(name)}; or prove it as it is: vtool verify RECIPE",
                name,
                expected=tested_range(name),
                seen=version,
            )


def untested_here() -> Iterator[Diagnostic]:
    """Yield a warning for each package that is installed in a release that was not tested."""
    yield from untested(installed_versions(list(TESTED)))


def known_broken(version: str) -> Iterator[Diagnostic]:
    """Yield a warning for each family that this release of transformers cannot be trained with.

    Of a machine, and not of a recipe.
    """
    for family in FAMILIES:
        for one in defects_of(version, family):
            yield Diagnostic(
                "release-broken",
                f"model.family={family} is refused: transformers {version} {one.what}",
                f"pip install {pip_range('transformers')}",
                "transformers",
                expected=f">={one.below}",
                seen=version,
                severity="warning",
            )


def _broken(version: str, family: str, origins: Origins) -> Iterator[Diagnostic]:
    for one in defects_of(version, family):
        yield Diagnostic(
            "release-broken",
            f"model.family is {family}, and transformers {version} {one.what}",
            f"pip install {pip_range('transformers')}",
            "model.family",
            origins.near("model.family"),
            expected=f">={one.below}",
            seen=version,
        )


def require_training(what: str) -> None:
    """Check that what trains is installed, before an import of it fails.

    Args:
        what: the command or the function that asks for it.

    Raises:
        Findings: `extra-not-installed`, fatal.
    """
    absent = [name for name in _NEEDED if find_spec(name) is None]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        message = f"{what} needs the extra `train`: {', '.join(absent)} {verb} not installed"
        raise Findings(Diagnostic("extra-not-installed", message, _TRAIN, absent[0]), fatal=True)
