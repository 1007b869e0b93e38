"""The packages that vtool's metadata requires, and those that are installed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement

from vtool.diagnostics import Diagnostic

EXTRAS = ("train", "megatron", "mbridge", "npu", "video", "data", "qlora")
"""The extras that a recipe can need; the others are for vtool's own development."""


@dataclass(frozen=True, slots=True)
class RequiredPackage:
    """One requirement of the metadata."""

    requirement: Requirement
    extra: str | None
    version: str | None
    """The installed version; None where there is none."""

    @property
    def name(self) -> str:
        """The name that pip takes."""
        return self.requirement.name

    @property
    def fits(self) -> bool:
        """True where the installed version is within the bounds."""
        return self.version is not None and self.requirement.specifier.contains(
            self.version, prereleases=True
        )

    @property
    def install(self) -> str:
        """The command that installs what fits."""
        return (
            f"pip install 'vtool[{self.extra}]'"
            if self.extra
            else f"pip install '{self.name}{self.requirement.specifier}'"
        )


def packages() -> tuple[RequiredPackage, ...] | None:
    """Return every package that vtool requires, extras included.

    None where vtool itself is not installed, and so has no metadata.
    """
    try:
        lines = metadata.requires("vtool") or []
    except metadata.PackageNotFoundError:
        return None
    return tuple(_read(lines))


def _read(lines: Sequence[str]) -> Iterator[RequiredPackage]:
    for line in lines:
        requirement = Requirement(line)
        marker = requirement.marker
        if requirement.name == "vtool":  # an extra that brings another one along
            continue
        if marker is None or marker.evaluate({"extra": ""}):
            yield RequiredPackage(requirement, None, distribution_version(requirement.name))
        else:
            for extra in EXTRAS:
                if marker.evaluate({"extra": extra}):
                    yield RequiredPackage(
                        requirement, extra, distribution_version(requirement.name)
                    )


def distribution_version(name: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def package_problems(needed: Sequence[RequiredPackage]) -> Iterator[Diagnostic]:
    """Yield a finding for each package that is missing or does not fit."""
    for package in needed:
        wanted = str(package.requirement.specifier)
        if package.version is None:
            yield Diagnostic(
                "extra-not-installed" if package.extra else "package-missing",
                f"{package.name} is not installed",
                package.install,
                package.name,
                expected=f"{package.name}{wanted}",
            )
        elif not package.fits:
            yield Diagnostic(
                "version-mismatch",
                f"{package.name} {package.version} is installed, and vtool asks for"
                f" {package.name}{wanted}",
                package.install,
                package.name,
                expected=wanted,
                seen=package.version,
            )
