"""Packages that are not what their metadata says: twice there, half upgraded, editable."""

import re
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from vtool.config.environment.packages import check_releases, known_broken, untested_here
from vtool.contents import read_small_json, small_file
from vtool.diagnostics import Diagnostic
from vtool.doctor.packages import distribution_version
from vtool.doctor.recipe import Needs
from vtool.releases import TESTED, InstalledPackage, find_installed, installed_version


def installation_problems() -> Iterator[Diagnostic]:
    """Yield the problems of the files of the packages that a run is computed with."""
    for name in TESTED:
        found = _apart(find_installed([name]))
        if not found:
            continue
        yield from _twice(name, found)
        yield from _left_behind(name, found[0])
        yield from _other_code(found[0])
        yield from _half_upgraded(found[0])
        yield from _editable(found[0])


def release_problems(needs: Needs | None) -> Iterator[Diagnostic]:
    """Yield the known problems of the installed releases.

    Args:
        needs: those of a recipe; without one, every model family is looked at.
    """
    if needs is not None and needs.load_check is not None:
        return
    if needs is not None and needs.run is not None:
        yield from check_releases(needs.run, needs.origins).findings
        return
    yield from untested_here()
    if version := installed_version("transformers"):
        yield from known_broken(version)


def _apart(found: list[InstalledPackage]) -> list[InstalledPackage]:
    """Return installations without those that another path leads to as well, as lib64 does."""
    return list({one.about.resolve(): one for one in reversed(found)}.values())[::-1]


def _twice(name: str, found: list[InstalledPackage]) -> Iterator[Diagnostic]:
    first, *others = found
    for other in others:
        together = other.about.parent.resolve() == first.about.parent.resolve()
        where = "the same folder" if together else str(other.about.parent)
        yield Diagnostic(
            "package-twice",
            f"{name} {first.version} is installed in {first.about.parent}, and {name}"
            f" {other.version} in {where}",
            f"pip uninstall {name}, until it says that none is left; then install it once",
            name,
            seen=f"{first.version}, {other.version}",
            # in another folder it is hidden by the first
            severity="error" if together else "warning",
        )


def _left_behind(name: str, one: InstalledPackage) -> Iterator[Diagnostic]:
    """Yield a finding for a package that pip left half changed: ~ in the place of a letter."""
    left = [file.name for file in one.about.parent.glob(f"~{name[1:]}*")]
    if left:
        yield Diagnostic(
            "package-twice",
            f"pip was stopped while it changed {name}: {one.about.parent / left[0]} is left behind",
            f"remove it; pip install --force-reinstall --no-deps {name}=={one.version}",
            name,
        )


def _other_code(one: InstalledPackage) -> Iterator[Diagnostic]:
    spec = find_spec(one.name)
    folders = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders[:1]:
        for file in (folder / "version.py", folder / "__init__.py"):
            in_code = _version_in(file)
            if in_code is not None:
                if in_code.partition("+")[0] != one.version.partition("+")[0]:
                    yield Diagnostic(
                        "package-twice",
                        f"the code of {one.name} that is imported says {in_code} ({file}), its"
                        f" metadata {one.version} ({one.about})",
                        "take the folder off PYTHONPATH, or install the package again: pip install"
                        f" --force-reinstall --no-deps {one.name}=={one.version}",
                        one.name,
                        expected=one.version,
                        seen=in_code,
                    )
                return


def _version_in(file: Path) -> str | None:
    try:
        text = small_file(file).decode(errors="replace")
    except OSError:
        return None
    found = re.search(r"^__version__\s*(?::\s*\w+\s*)?=\s*['\"]([^'\"]+)['\"]", text, re.M)
    return found[1] if found else None


def _half_upgraded(one: InstalledPackage) -> Iterator[Diagnostic]:
    """Yield the requirements of a package of which another release is installed."""
    for line in metadata.PathDistribution(one.about).requires or ():
        asked = Requirement(line)
        if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
            continue
        version = distribution_version(asked.name)
        if version is not None and not asked.specifier.contains(version, prereleases=True):
            yield Diagnostic(
                "version-mismatch",
                f"{one.name} {one.version} asks for {asked.name}{asked.specifier}, and"
                f" {asked.name} {version} is installed: one of the two was upgraded by itself",
                f"pip install '{asked.name}{asked.specifier}'",
                asked.name,
                expected=str(asked.specifier),
                seen=version,
            )


def _editable(one: InstalledPackage) -> Iterator[Diagnostic]:
    try:
        origin = read_small_json(one.about / "direct_url.json")
        editable = bool(origin.get("dir_info", {}).get("editable"))
    except (OSError, ValueError, AttributeError):
        return
    if editable:
        yield Diagnostic(
            "release-untested",
            f"{one.name} {one.version} is an editable install of {origin.get('url')}: its code can"
            " be that of any commit",
            "prove what it computes: vtool verify RECIPE",
            one.name,
            severity="note",
        )
