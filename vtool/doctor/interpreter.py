"""The packages of an interpreter, from metadata alone: nothing of them is imported.

The interpreter is started once, for the folders that it imports from.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from vtool.diagnostics import Diagnostic, Findings

_SECONDS = 60.0
# a json.py in the working directory is not to be imported; -P is of Python 3.11
_NOT_FROM_HERE = "import sys\nif sys.path[:1] == ['']: del sys.path[0]"
_ASK_PATHS = "import json; print('\\n' + json.dumps({'path': sys.path}))"
_BUILDS = re.compile(r"cpu|cu\d+|rocm[\d.]*|xpu")
"""Local versions under which a project publishes builds of one release."""


@dataclass(frozen=True, slots=True)
class FoundPackage:
    """A package in an interpreter."""

    name: str
    """The name by which pip knows it."""
    version: Version | None
    """The release; None where it is unknown."""
    text: str
    """The version, as the metadata has it."""
    why: str = ""
    """The reason why the release is unknown."""
    damaged: bool = False
    """True where the files are wrong, and not merely somebody's own."""
    commit: str = ""
    """The commit that it was installed from, by git."""


def ask(python: str, code: str, *arguments: str, seconds: float = _SECONDS) -> str:
    """Run some code in another interpreter, and return what it prints.

    Raises:
        OSError: it cannot be started, does not end, or ends with another status than 0.
    """
    try:
        done = subprocess.run(
            [python, "-c", f"{_NOT_FROM_HERE}\n{code}", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise OSError(f"{python} cannot be started: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{python} has not answered within {seconds:g} seconds") from error
    if done.returncode:
        errors = done.stderr.strip().splitlines()
        last = errors[-1] if errors else "it said nothing"
        raise OSError(f"{python} ended with status {done.returncode}: {last}")
    return done.stdout


def paths_of(python: str | None) -> tuple[str, ...]:
    """Return the folders that an interpreter imports from.

    Args:
        python: its file; None for the one that runs this.

    Raises:
        Findings: `unusable-interpreter`, fatal.
    """
    if python is None:
        return tuple(dict.fromkeys(each for each in sys.path if each))
    if Path(python).is_dir():
        raise _unusable(f"{python} is a folder", f"give its interpreter: {python}/bin/python")
    try:
        answers = [line for line in ask(python, _ASK_PATHS).splitlines() if line[:1] == "{"]
        listed = json.loads(answers[-1])["path"]
    except OSError as error:
        raise _unusable(str(error), "give the python of the environment that trains") from None
    except (IndexError, ValueError, KeyError, TypeError):
        raise _unusable(
            f"{python} does not answer as a Python does",
            "give the python of the environment that trains",
        ) from None
    return tuple(dict.fromkeys(str(each) for each in listed if each))


def unreadable(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the folders among some that are there and cannot be listed."""
    closed = []
    for path in paths:
        try:
            os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            closed.append(path)
    return tuple(closed)


def installed_any(paths: Sequence[str]) -> bool:
    """Return whether these folders have metadata of any package."""
    return next(iter(metadata.distributions(path=list(paths))), None) is not None


def look_up(distributions: Sequence[str], module: str, paths: Sequence[str]) -> FoundPackage | None:
    """Return the package that would be imported, None where there is none.

    Args:
        distributions: the names under which it is published.
        module: what is imported.
        paths: the folders that are imported from.
    """
    found = [
        one for name in distributions for one in metadata.distributions(name=name, path=list(paths))
    ]
    code = _code(module, paths)
    if not found:
        if code is None:
            return None
        return FoundPackage(
            distributions[0], None, "", f"its code is in {code}, without pip's metadata"
        )
    first = found[0]
    name, text = distributions[0], ""
    try:
        name = canonicalize_name(first.metadata["Name"] or name)
        text = first.version
        release = Version(text)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        why = f"its metadata in {_about(first)} is damaged or lacks a version"
        return FoundPackage(name, None, "", why, damaged=True)
    if why := _twice(found):
        return FoundPackage(name, None, text, why, damaged=True)
    origin = _origin(first)
    why = _own(origin, release) or _elsewhere(first, code)
    commit = (origin or {}).get("vcs_info", {}).get("commit_id", "")
    # a build of a release, such as 0.21.0+cu129, is that release
    known = None if why else Version(release.public)
    return FoundPackage(name, known, text, why, commit=str(commit))


def _origin(one: metadata.Distribution) -> dict[str, Any] | None:
    """Return pip's record of an install that is from no index; None where it is damaged."""
    try:
        origin = json.loads(one.read_text("direct_url.json") or "{}")
    except (OSError, ValueError):
        return None
    groups = ("vcs_info", "dir_info")
    sound = isinstance(origin, dict) and all(
        isinstance(origin.get(group, {}), dict) for group in groups
    )
    return origin if sound else None


def _twice(found: Sequence[metadata.Distribution]) -> str:
    """Return why it is not known which of several is there, empty where it is."""
    folder = _folder(found[0])
    together = {_about(one).resolve(): one for one in found if _folder(one) == folder}
    if len(together) < 2:
        return ""
    versions = ", ".join(sorted({str(_version(one)) for one in together.values()}))
    return f"it is installed twice in {folder}: {versions}"


def _elsewhere(one: metadata.Distribution, code: Path | None) -> str:
    """Return where code and metadata are, if that is not one place; else an empty text."""
    if code is None or code.resolve() == _folder(one):
        return ""
    return f"what is imported is in {code}, its metadata in {_folder(one)}"


def _own(origin: Mapping[str, Any] | None, release: Version) -> str:
    """Return why the code may be another than that of the release, empty where it is not."""
    if release.local is not None and not _BUILDS.fullmatch(release.local):
        return "its version is somebody's own"
    if release.is_prerelease or release.is_devrelease:
        return "it is no release"
    if origin is None:
        return "its direct_url.json cannot be read, so where it is from is not known"
    if "vcs_info" in origin:
        return f"it was installed from {origin.get('url')}: its code can be that of any commit"
    if "dir_info" in origin:
        editable = "an editable install of" if origin["dir_info"].get("editable") else "built in"
        return f"it is {editable} {origin.get('url')}: its code can be that of any commit"
    return ""


def _code(module: str, paths: Sequence[str]) -> Path | None:
    """Return the folder from which a module would be imported."""
    inside = Path(*module.split("."), "__init__.py")
    return next((Path(path) for path in paths if _is_file(Path(path) / inside)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _about(one: metadata.Distribution) -> Path:
    """Return the folder of the metadata."""
    return Path(getattr(one, "_path", None) or str(one.locate_file("")))


def _folder(one: metadata.Distribution) -> Path:
    """Return the folder that the metadata describes, links followed."""
    return Path(str(one.locate_file(""))).resolve()


def _version(one: metadata.Distribution) -> str | None:
    try:
        return one.version
    except (OSError, ValueError, KeyError):
        return None


def _unusable(message: str, help: str) -> Findings:
    return Findings(Diagnostic("unusable-interpreter", message, help, "--python"), fatal=True)
