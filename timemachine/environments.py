"""Old releases side by side over one torch: wheels, the folders that they fill, interpreters.

A wheel is fetched once, by pip, and filled into a folder of its own. A side of a case is a virtual
environment whose packages are links: to those folders, and to the torch of this environment. So a
side costs no disk, and nothing that is installed here is seen by it unless the case names it.
"""

import errno
import hashlib
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from timemachine.case import name_of

BASE = (
    "torch", "numpy", "safetensors", "regex", "pyyaml", "tqdm", "requests", "packaging",
    "filelock", "fsspec", "psutil", "pillow", "jinja2", "rich", "typing-extensions", "einops",
)  # fmt: skip
"""Packages of this environment that every side uses, with all that they require."""
_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ProxyError"
    r"|ConnectTimeout|Max retries exceeded|Network is unreachable|SSLError"
)
_PART = "part-"
_NO_SPACE = "No space left on device"


class NotHad(Exception):
    """A reason why a side cannot be run: a wheel, the network, the disk."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A wheel, filled into a folder of its own."""

    requirement: str
    file: str
    sha256: str
    folder: Path

    @property
    def name(self) -> str:
        """The package's name."""
        return name_of(self.requirement)


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter that sees the wheels of one side."""

    python: Path
    trees: tuple[Tree, ...]
    versions: dict[str, str]
    """The versions of the wheels, and of torch."""


def make_environment(
    cache: Path,
    wheels: Sequence[str],
    installed: Sequence[str],
    over: Path | None = None,
    checkouts: Mapping[str, Path] = MappingProxyType({}),
) -> Environment:
    """Fetch wheels, and make an interpreter that sees them and the torch of this environment.

    Args:
        cache: where wheels, their folders and environments are kept.
        wheels: requirements of one version, or commits.
        installed: packages of this environment that are to be seen as well.
        over: another virtual environment, all of whose packages are seen instead.
        checkouts: repositories in which commits are, by the name of their package.

    Raises:
        NotHad: where a wheel cannot be had, or the disk is full.
    """
    try:
        trees = tuple(
            _commit(cache, wheel, checkouts) if "@" in wheel else _tree(cache, wheel)
            for wheel in wheels
        )
        return _link(cache, trees, installed, over)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise NotHad(f"the disk of {cache} is full") from error
        raise NotHad(f"{cache}: {error}") from error


def _tree(cache: Path, requirement: str) -> Tree:
    wheel = fetch(cache / "wheels", requirement)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    folder = cache / "trees" / f"{requirement.replace('==', '-')}-{sha256[:8]}"
    if not folder.is_dir():
        with _made_whole(folder) as filled:
            _pip("install", "--no-deps", "--no-index", "--no-compile", "--target", filled, wheel)
    return Tree(requirement, wheel.name, sha256, folder)


def _commit(cache: Path, requirement: str, checkouts: Mapping[str, Path]) -> Tree:
    """Fill the files of a commit into a folder; nothing of the repository is run or changed."""
    name, _, commit = requirement.partition("@")
    if name not in checkouts:
        raise NotHad(f"no release has it, and no repository is given: --checkout {name}=DIR")
    git = ["git", "-C", str(checkouts[name])]
    try:
        asked = [*git, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
        whole = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        folder = cache / "trees" / f"{name}-{whole[:12]}"
        if not folder.is_dir():
            archive = subprocess.run(
                [*git, "archive", "--format=tar", whole], capture_output=True, check=True
            ).stdout
            with (
                _made_whole(folder) as filled,
                tarfile.open(fileobj=io.BytesIO(archive)) as tar,
            ):
                tar.extractall(filled, filter="data")
    except subprocess.CalledProcessError:
        raise NotHad(f"{checkouts[name].name} has no commit {commit} of {name}") from None
    return Tree(requirement, requirement, whole, folder)


def fetch(wheels: Path, requirement: str) -> Path:
    """Return the file of a wheel, which pip fetches where it is not there yet.

    Raises:
        NotHad: where pip gets none.
    """
    kept = wheels / requirement
    if found := sorted(kept.glob("*.whl")):
        return found[0]
    with _made_whole(kept) as got:
        _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", got, requirement)
    return next(iter(sorted(kept.glob("*.whl"))))


@contextmanager
def _made_whole(folder: Path) -> Iterator[Path]:
    """Give a place to fill, which then becomes this folder: it is there whole, or not at all.

    Another run may fill it at the same time: the first one's stays. What a run that was killed has
    left next to it is removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f"{_PART}*"):
        if not _is_alive(int(left.name.split("-")[1])):
            shutil.rmtree(left, ignore_errors=True)
    prefix = f"{_PART}{os.getpid()}-"
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as scratch:
        made = Path(scratch) / "made"
        yield made
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _pip(*words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "5"]  # with none, pip does not say that nothing answers
    ended = subprocess.run(
        [*command, *map(str, words)], capture_output=True, text=True, check=False
    )
    if not ended.returncode:
        return
    output = ended.stdout + ended.stderr
    if _NO_SPACE in output:
        raise NotHad("the disk of the cache is full")
    if _NO_NETWORK.search(output):
        raise NotHad(f"no registry answers: {words[-1]}")
    lines = [line for line in output.splitlines() if line.startswith("ERROR")] or ["pip failed"]
    raise NotHad(f"{lines[-1].removeprefix('ERROR: ')}")


def _link(
    cache: Path, trees: Sequence[Tree], installed: Sequence[str], over: Path | None
) -> Environment:
    """Make the virtual environment of these trees, or return the one that is there."""
    hidden = {canonicalize_name(tree.name) for tree in trees}
    links = _all_links(over, hidden) if over else _links((*BASE, *installed), hidden)
    output = [*(tree.sha256 for tree in trees), *(f"{name} {at}" for name, at in links.items())]
    key = hashlib.sha256("\n".join([sys.executable, *output]).encode()).hexdigest()[:12]
    folder = cache / "environments" / key
    if not folder.is_dir():
        with _made_whole(folder) as made:
            venv.EnvBuilder(symlinks=True).create(made)
            site = _site(made)
            for name, at in links.items():
                (site / name).symlink_to(at)
            names = "".join(f"{tree.folder.resolve()}\n" for tree in trees)
            (site / "trees.pth").write_text(names, encoding="utf-8")
    versions = {tree.name: re.split("==|@", tree.requirement)[1] for tree in trees}
    named = {name: importlib.metadata.version(name) for name in ("torch", *installed)}
    return Environment(folder / "bin/python", tuple(trees), {**versions, **named})


def _all_links(environment: Path, hidden: set[str]) -> dict[str, Path]:
    """Return the links to the packages of an environment, but for some.

    Raises:
        NotHad: where it is not there.
    """
    site = _site(environment)
    if not site.is_dir():
        raise NotHad(f"{environment.name} is not built, or for another Python (make vllm-env)")
    found: dict[str, Path] = {}
    for package in importlib.metadata.distributions(path=[str(site)]):
        if canonicalize_name(package.metadata["Name"]) not in hidden:
            found.update(_tops(package))
    for line in site.glob("*.pth"):  # such as `make vllm-env` puts there, with the module it names
        if (module := line.with_suffix(".py")).is_file():
            found |= {one.name: one.resolve() for one in (line, module)}
    return dict(sorted(found.items()))


def _tops(package: importlib.metadata.Distribution) -> dict[str, Path]:
    """Return the files and folders of a package at the top of its site, by their names."""
    tops = {file.parts[0] for file in package.files or ()}
    own = {top for top in tops if top not in ("..", "__pycache__", "bin") and top[0] != "/"}
    return {top: Path(str(package.locate_file(top))).resolve() for top in own}


def _site(environment: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"


def _links(names: Iterable[str], hidden: set[str]) -> dict[str, Path]:
    """Return the links to the packages of these names, and to all that they require.

    Raises:
        NotHad: for a package that is not installed here.
    """
    found: dict[str, Path] = {}
    seen, left = set(hidden), [canonicalize_name(name) for name in names]
    named = set(left)
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name in named:
                raise NotHad(f"{name} is not installed with vtool") from None
            continue  # what a platform has not is required by a marker, or by nobody
        found.update(_tops(package))
        for line in package.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(canonicalize_name(requirement.name))
    return dict(sorted(found.items()))
